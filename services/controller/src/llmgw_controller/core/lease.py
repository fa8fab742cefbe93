"""The holder's own rules for the lease: when it may act, and which timings leave it time to.

The store decides who holds; here is what the holder demands of itself meanwhile. The rule on timings is
Patroni's (loop_wait + 2 * retry_timeout <= ttl), with our margin taken off the ttl.
"""

from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest


@dataclass(frozen=True)
class LeaseTiming:
    """Seconds. `validated` before use."""

    #: How long a lease lasts without renewal: the longest that a dead leader is missed.
    ttl_s: float = 10.0
    #: Between two renewals.
    renew_s: float = 2.0
    #: After a renewal that failed, and between a standby's looks.
    retry_s: float = 1.0
    #: Leading ends so long before the lease does: for acts under way, and for clocks that run unequally.
    margin_s: float = 2.0


def validated(timing: LeaseTiming) -> LeaseTiming:
    """The same timing. Raises InvalidRequest with the numbers when one lost renewal would end leading."""
    for name in ("ttl_s", "renew_s", "retry_s", "margin_s"):
        if getattr(timing, name) <= 0:
            raise InvalidRequest(f"lease {name} is {getattr(timing, name):g}; it must be above 0")
    needed = timing.renew_s + 2 * timing.retry_s
    left = timing.ttl_s - timing.margin_s
    if needed > left:
        raise InvalidRequest(
            f"lease timings leave no room for a retry: renew {timing.renew_s:g} s + 2 x retry "
            f"{timing.retry_s:g} s = {needed:g} s, but ttl {timing.ttl_s:g} s - margin {timing.margin_s:g} s "
            f"= {left:g} s",
            next_steps=["lengthen the ttl, or shorten renew or retry"],
        )
    return timing


def may_act(renewed_at: float, now: float, *, ttl_s: float, margin_s: float) -> bool:
    """Whether the holder may still act. Both readings are of one monotonic clock, `renewed_at` taken before
    the renewal was asked for."""
    return now - renewed_at < ttl_s - margin_s
