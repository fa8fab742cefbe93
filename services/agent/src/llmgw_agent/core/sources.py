"""How a source of pieces stands with this node: measured, resting, slow, or asked no more.

A wrong piece bans its giver for as long as the fetch lasts: whoever sent one sends another. The mirror is
never banned, since nobody else has everything; a wrong piece from it makes it rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

#: Weight of the newest measurement.
NEWEST = 0.3
#: After a failure, doubled with each in a row.
REST_S, REST_MOST_S = 0.5, 30.0
#: After "busy" where the source does not say how long; spread by chance.
BUSY_S = 0.1
#: A source slower than this part of the median is left alone while others can give what it has.
SLOW_PART = 1 / 8
#: A slow source is tried again after so long: nobody is measured who is not asked.
SLOW_FOR_S = 10.0
#: Below so many measured there is no median worth the name.
MEASURED_LEAST = 3
#: A piece is late after so many times what pieces usually take, and never sooner than after so many seconds.
LATE_TIMES, LATE_LEAST_S = 4.0, 1.0


@dataclass(frozen=True)
class Standing:
    """`rate_bytes_s`: None until it gave something. `banned`: why it is asked no more."""

    mirror: bool = False
    rate_bytes_s: float | None = None
    took_s: float | None = None
    measured_at: float | None = None
    failures: int = 0
    rests_until: float = 0.0
    banned: str | None = None


def gave(standing: Standing, now: float, count: int, *, sending_s: float, took_s: float) -> Standing:
    """A piece of `count` bytes came and was right: `took_s` after it was asked for, of which `sending_s` from
    its first byte on. Waiting in line makes nobody slow."""
    rate = count / max(sending_s, 1e-6)
    before = standing.rate_bytes_s
    return replace(
        standing,
        rate_bytes_s=rate if before is None else before + NEWEST * (rate - before),
        took_s=took_s if standing.took_s is None else standing.took_s + NEWEST * (took_s - standing.took_s),
        measured_at=now,
        failures=0,
        rests_until=0.0,
    )


def was_busy(standing: Standing, now: float, retry_after_s: float | None, chance: float) -> Standing:
    """It has no room now; no fault of its own."""
    rest_s = BUSY_S if retry_after_s is None else retry_after_s
    return replace(standing, rests_until=now + rest_s * (0.5 + chance))


def failed(standing: Standing, now: float) -> Standing:
    """It does not answer, or broke off."""
    rest_s = min(REST_MOST_S, REST_S * 2.0 ** min(standing.failures, 10))
    return replace(standing, failures=standing.failures + 1, rests_until=now + rest_s)


def lied(standing: Standing, now: float, what: str) -> Standing:
    """A piece of it was wrong."""
    return failed(standing, now) if standing.mirror else replace(standing, banned=what)


def slow_ones(standings: Mapping[str, Standing], now: float) -> frozenset[str]:
    """Peers far behind the rest."""
    rates = [one.rate_bytes_s for one in standings.values() if one.rate_bytes_s is not None]
    if len(rates) < MEASURED_LEAST:
        return frozenset()
    least = median(rates) * SLOW_PART
    return frozenset(
        name
        for name, one in standings.items()
        if not one.mirror
        and one.rate_bytes_s is not None
        and one.rate_bytes_s < least
        and one.measured_at is not None
        and now - one.measured_at < SLOW_FOR_S
    )


def late_s(standings: Mapping[str, Standing]) -> float | None:
    """After how many seconds a piece is late; None: nothing came yet."""
    times = [one.took_s for one in standings.values() if one.took_s is not None]
    return max(LATE_LEAST_S, LATE_TIMES * median(times)) if times else None


def usable(standing: Standing, now: float) -> bool:
    """Whether to ask it now, slowness aside."""
    return standing.banned is None and now >= standing.rests_until
