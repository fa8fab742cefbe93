"""Why a request went where it went, as `x-llmgw-decision` and the admin listener tell it. Pure.

Made only for who may see it: it names replicas.
"""

from collections.abc import Container

import msgspec

from llmgw_router.core.choosing.affinity import CUTS, Match
from llmgw_router.core.choosing.picking import C, Candidate, Field
from llmgw_router.core.choosing.standing import Standing

#: Endpoints that were passed over and are named; of more, only their number is told.
_NAMED = 8


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """One choice. A request that is asked again has several."""

    request_id: str
    model: str
    #: None: there was nobody.
    endpoint_id: str | None
    #: The rule that decided (core/choosing/picking.py).
    policy: str
    #: The how-manieth endpoint this request is sent to.
    attempt: int
    #: Bytes of the prompt that the endpoint has seen, of those that were looked at. None: not looked at.
    known_bytes: int | None
    prompt_bytes: int | None
    #: Requests there when it was chosen, this one not among them.
    outstanding: int | None
    #: Endpoints passed over, and why; at most a few.
    skipped: tuple[tuple[str, str], ...]
    skipped_more: int = 0

    def at(self, endpoint_id: str | None) -> "Decision":
        """The same choice where the request went elsewhere in the end: there was no room left."""
        if endpoint_id == self.endpoint_id:
            return self
        return msgspec.structs.replace(
            self,
            endpoint_id=endpoint_id,
            policy="room",
            known_bytes=None,
            prompt_bytes=None,
            outstanding=None,
        )

    def header(self) -> bytes:
        """The value of `x-llmgw-decision`."""
        parts = [
            f"replica={self.endpoint_id or 'none'}",
            f"policy={self.policy}",
            f"attempt={self.attempt}",
        ]
        if self.prompt_bytes is not None:
            parts.append(f"known={self.known_bytes or 0}/{self.prompt_bytes}")
        if self.outstanding is not None:
            parts.append(f"load={self.outstanding}")
        if self.skipped:
            named = ",".join(f"{name}:{why}" for name, why in self.skipped)
            more = f",+{self.skipped_more}" if self.skipped_more else ""
            parts.append(f"skipped={named}{more}")
        # An id is the controller's or the file's word: whatever it holds, this stays one line.
        text = "; ".join(parts)
        return (text if text.isprintable() else repr(text)[1:-1]).encode("ascii", "backslashreplace")


def decide(
    field: Field[C],
    chosen: C | None,
    policy: str,
    match: Match | None,
    *,
    request_id: str,
    model: str,
    attempt: int,
    now: float,
    tried: Container[object],
) -> Decision:
    """The story of one pick, told right after it."""
    skipped: list[tuple[str, str]] = []
    more = 0
    for candidate in field.endpoints:
        why = None if candidate is chosen else _why_not(candidate, now, tried)
        if why is None:
            continue
        if len(skipped) < _NAMED:
            skipped.append((candidate.name, why))
        else:
            more += 1
    known = prompt = None
    if match is not None and match.depths is not None:
        prompt = CUTS[len(match.chain) - 1]
        depth = 0 if chosen is None else match.depths.get(chosen.name, 0)
        known = CUTS[depth - 1] if depth else 0
    return Decision(
        request_id=request_id,
        model=model,
        endpoint_id=None if chosen is None else chosen.name,
        policy=policy,
        attempt=attempt,
        known_bytes=known,
        prompt_bytes=prompt,
        outstanding=None if chosen is None else chosen.outstanding(),
        skipped=tuple(skipped),
        skipped_more=more,
    )


def _why_not(candidate: Candidate, now: float, tried: Container[object]) -> str | None:
    """A reason other than load; None: it was just not the best."""
    if candidate in tried:
        return "tried"
    if candidate.resting_until > now:
        return "resting"
    if isinstance(candidate, Standing):
        if candidate.ejected and candidate.avoid_until > now:
            reason = candidate.reason
            return "on-trial" if candidate.trial is not None else reason.value if reason else "ejected"
        if candidate.slow_until > now:
            return "slow"
    return "busy" if candidate.avoid_until > now else None
