"""Waiting: replicas without a place, whether somebody misses them, and whose turn it is."""

from dataclasses import dataclass

from llmgw_controller.core.catalog import Model
from llmgw_controller.core.placing import rank
from llmgw_controller.core.rows import Cause, Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.turns import start_of
from llmgw_kit.ids import ModelId


@dataclass(frozen=True)
class Wait:
    """A replica that waits for room."""

    row: ReplicaRow
    model: Model
    #: Since when it cannot be placed.
    since: float

    def overdue(self, snapshot: Snapshot, now: float) -> bool:
        """Longer than anybody is to wait."""
        return now - self.since >= snapshot.intervals.eviction_patience_s


def waiting(snapshot: Snapshot, now: float) -> list[Wait]:
    """All that cannot be placed and whose model wants them, in the order in which room is made: who has
    waited too long, then as they are placed; the demands of one model follow each other."""
    found = [
        Wait(row, model, row.since)
        for row in snapshot.stored.sorted_replicas
        if row.phase is Phase.UNPLACEABLE and row.wish is Wish.SERVE
        if (model := snapshot.catalog.models.get(row.model)) is not None
        if not _is_spare(snapshot, row, model)
    ]
    first: dict[ModelId, Wait] = {}
    for one in found:
        if one.row.model not in first or one.since < first[one.row.model].since:
            first[one.row.model] = one

    def turn(one: Wait) -> tuple[bool, tuple[int, int, int], float, str, float, str]:
        oldest = first[one.row.model]
        late = oldest.overdue(snapshot, now)
        return not late, rank(one.model), oldest.since, one.row.model, one.since, one.row.replica_id

    return sorted(found, key=turn)


def rotated(waits: list[Wait], now: float, step: int) -> list[Wait]:
    """Where more models wait than one pass looks at, each pass begins with others: those in front, for whom
    nothing is found, must not keep the rest out for ever. Nor may the rhythm of the passes: every two seconds
    met only half of twelve."""
    names = list(dict.fromkeys(one.row.model for one in waits))
    if len(names) <= step:
        return waits
    begin = start_of(len(names), now)
    place = {name: (number - begin) % len(names) for number, name in enumerate(names)}
    return sorted(waits, key=lambda one: place[one.row.model])


def is_missed(snapshot: Snapshot, row: ReplicaRow, model: Model) -> bool:
    """Somebody wants it now: configuration, a request that waits, or a queue."""
    if row.wish is not Wish.SERVE or _is_spare(snapshot, row, model):
        return False
    return (
        row.cause is Cause.CONFIGURATION
        or model.name in snapshot.stored.activations
        or bool(snapshot.held.get(model.name))
        or (row.cause is Cause.DEMAND and model.name in snapshot.watched.pressed_since)
    )


def _is_spare(snapshot: Snapshot, row: ReplicaRow, model: Model) -> bool:
    """One too many that a rollout or a move has started beside what serves: nobody misses it."""
    mine = [one for one in snapshot.stored.by_model.get(model.name, ()) if one.wish is Wish.SERVE]
    return row.cause is Cause.CONFIGURATION and len(mine) > model.replicas
