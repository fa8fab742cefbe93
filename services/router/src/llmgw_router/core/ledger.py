"""Counters by model that go on when an endpoint leaves and its column is given away.

Pure. Readings of one endpoint only grow while it owns its column; a smaller one means that the
column was cleared in between and counts anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Count:
    """Sums of one endpoint, or of one model."""

    picks: int = 0
    failed: int = 0
    broken: int = 0

    def plus(self, other: "Count") -> "Count":
        return Count(self.picks + other.picks, self.failed + other.failed, self.broken + other.broken)

    def less_than(self, other: "Count") -> bool:
        return self.picks < other.picks or self.failed < other.failed or self.broken < other.broken


class Ledger:
    """Feed it every reading; ask it for totals that never go down."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Count] = {}
        self._settled: dict[str, Count] = {}

    def read(self, readings: Iterable[tuple[str, str, Count]]) -> None:
        """`(model, endpoint id, count)` of every endpoint that owns a column now."""
        now = {(model, endpoint_id): count for model, endpoint_id, count in readings}
        for key, before in self._last.items():
            if key not in now or now[key].less_than(before):
                model = key[0]
                self._settled[model] = self._settled.get(model, Count()).plus(before)
        self._last = now

    def totals(self) -> dict[str, Count]:
        """By model, in order of name."""
        totals = dict(self._settled)
        for (model, _), count in self._last.items():
            totals[model] = totals.get(model, Count()).plus(count)
        return dict(sorted(totals.items()))
