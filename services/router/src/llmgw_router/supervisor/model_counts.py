"""What was finished for each model, summed over the workers and their lives.

Pure. Workers send differences, so that one that dies takes at most a sweep's worth along. Names come from
the table, and models that left it stay counted: a counter that vanishes reads as a reset.
"""

from collections.abc import Iterable, Mapping

import msgspec

from llmgw_router.relay.ipc import ModelCount

#: Distinct names that are kept apart; whoever adds and removes models for years ends in `other`.
MOST_MODELS = 10_000
OTHER = "other"


class ModelCounts:
    """Feed it what workers say; read totals that never go down."""

    def __init__(self, *, most: int = MOST_MODELS) -> None:
        self._most = most
        self._totals: dict[str, ModelCount] = {}

    def add(self, counts: Iterable[ModelCount]) -> None:
        totals = self._totals
        for count in counts:
            name = count.model
            if name not in totals and len(totals) >= self._most:
                name = OTHER
            before = totals.get(name)
            totals[name] = (
                msgspec.structs.replace(count, model=name) if before is None else _sum(before, count)
            )

    def totals(self) -> Mapping[str, ModelCount]:
        """By model, in order of name."""
        return dict(sorted(self._totals.items()))


def _sum(one: ModelCount, more: ModelCount) -> ModelCount:
    _, *ours = msgspec.structs.astuple(one)
    _, *theirs = msgspec.structs.astuple(more)
    return ModelCount(one.model, *(a + b for a, b in zip(ours, theirs, strict=True)))
