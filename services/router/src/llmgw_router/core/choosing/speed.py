"""Endpoints that answer, but slowly: told from their peers, since only those face the same prompts. Pure.

Measured are event streams only: when their first byte comes, and how many bytes a second follow, which
stands for tokens. An answer in one piece says neither.
"""

from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

#: A new measurement's part of the average.
_PART: Final = 0.1
#: Nobody is slow for coming this much later than others: the network and chance do as much.
_NOTICEABLE_S: Final = 0.05
#: Streams shorter than this say nothing of their speed.
_SHORTEST_S: Final = 0.2

K = TypeVar("K", bound=Hashable)


class Speed:
    """Averages of one endpoint, in one worker."""

    __slots__ = ("first_s", "firsts", "rate", "rates")

    def __init__(self) -> None:
        #: Seconds from departure to the first byte. None: not measured.
        self.first_s: float | None = None
        self.firsts = 0
        #: Bytes a second after the first one. None: not measured.
        self.rate: float | None = None
        self.rates = 0

    def began(self, waited_s: float) -> None:
        """A stream's first byte came after so long."""
        self.firsts += 1
        old = self.first_s
        # Weighed by the number at first: the very first one must not stand for twenty.
        self.first_s = waited_s if old is None else old + (waited_s - old) * max(_PART, 1 / self.firsts)

    def streamed(self, bytes_out: int, seconds: float) -> None:
        """A stream has ended, this long after its first byte."""
        if seconds < _SHORTEST_S:
            return
        self.rates += 1
        rate, old = bytes_out / seconds, self.rate
        self.rate = rate if old is None else old + (rate - old) * max(_PART, 1 / self.rates)

    def forget(self) -> None:
        """Measure anew."""
        self.first_s = self.rate = None
        self.firsts = self.rates = 0


def outliers(peers: Iterable[tuple[K, Speed]], *, factor: float, min_samples: int) -> set[K]:
    """Those that are `factor` times slower than the median of the others of their pool, which need
    enough samples as well: one endpoint alone is never slow."""
    peers = list(peers)
    firsts = [
        (key, one.first_s) for key, one in peers if one.first_s is not None and one.firsts >= min_samples
    ]
    rates = [(key, one.rate) for key, one in peers if one.rate is not None and one.rates >= min_samples]
    late = {
        key
        for key, value, middle in _beside_others(firsts)
        if value > middle * factor and value - middle > _NOTICEABLE_S
    }
    return late | {key for key, value, middle in _beside_others(rates) if value * factor < middle}


def _beside_others(values: list[tuple[K, float]]) -> list[tuple[K, float, float]]:
    """Each value with the median of all others."""
    n = len(values) - 1
    if n < 1:
        return []
    ordered = sorted(value for _, value in values)
    rank = {key: at for at, (key, _) in enumerate(sorted(values, key=lambda pair: pair[1]))}

    def other(at: int, own: int) -> float:
        return ordered[at if at < own else at + 1]

    found = []
    for key, value in values:
        own = rank[key]
        found.append((key, value, (other((n - 1) // 2, own) + other(n // 2, own)) / 2))
    return found
