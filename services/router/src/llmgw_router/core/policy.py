"""Which endpoint gets a request: least outstanding, by weight, among those that do not fail.

Pure: loads, the clock's reading and chance come in; the same numbers give the same pick.
"""

from collections.abc import Container, Sequence
from typing import Protocol, TypeVar

#: Up to this many endpoints all are compared; above, two drawn at random, which is nearly as good
#: (Mitzenmacher, "The power of two choices", 2001) and costs the same for any number.
SCAN_UP_TO = 8


class Candidate(Protocol):
    """What a pick needs to know of an endpoint."""

    weight: int
    #: Until then others are preferred: it just failed. In the clock of `now`.
    avoid_until: float

    def outstanding(self) -> int:
        """Requests running there, over all workers."""


C = TypeVar("C", bound=Candidate)


def pick(candidates: Sequence[C], *, now: float, chance: float, tried: Container[C] = ()) -> C | None:
    """The best of `candidates` not yet tried; None when all were.

    `chance` in [0, 1) breaks ties and draws the two. An endpoint to be avoided is used only when
    nothing else is left: a failing one may have recovered, while an empty answer surely fails.
    """
    if len(candidates) == 1:
        only = candidates[0]
        return None if only in tried else only
    usable = [c for c in candidates if c.avoid_until <= now and c not in tried]
    if not usable:
        usable = [c for c in candidates if c not in tried]
        if not usable:
            return None
    n = len(usable)
    start = int(chance * n)
    if n > SCAN_UP_TO:
        # The second draw reuses the digits that the first left over.
        step = 1 + int((chance * n - start) * (n - 1))
        usable = [usable[start], usable[(start + step) % n]]
        n, start = 2, 0
    best = usable[start]
    load, weight = best.outstanding() + 1, best.weight
    for offset in range(1, n):
        other = usable[(start + offset) % n]
        other_load = other.outstanding() + 1
        # other_load / other.weight < load / weight, without dividing.
        if other_load * weight < load * other.weight:
            best, load, weight = other, other_load, other.weight
    return best


def cool_down_s(failures: int) -> float:
    """How long an endpoint is avoided after `failures` in a row: 1, 2, 4 … 30 seconds."""
    return min(30.0, 2.0 ** min(failures - 1, 5))
