"""Watching: what follows from several looks where one says too little.

One look's word on waiting is an accident; a minute of looks is a need. The leader keeps the result in
memory and hands it back with the next snapshot; a new leader begins with nothing, and waits longer.
"""

from llmgw_controller.core.catalog import Model
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.idleness import JUDGED, fresh_routers
from llmgw_controller.core.loads import held_where_placed
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.rollout import is_current
from llmgw_controller.core.rows import Phase, ReplicaRow, Schedulability, Wish
from llmgw_controller.core.state import Snapshot, Watched


def watch(before: Watched, snapshot: Snapshot, now: float) -> Watched:
    """The next of `before`, after a look at `snapshot`."""
    return Watched(
        ran_at=_ran_at(before, snapshot, now),
        pressed_since={
            model.name: before.pressed_since.get(model.name, now)
            for model in snapshot.catalog.sorted_models()
            if model.max_replicas is not None and is_pressed(snapshot, model, now)
        },
        standing={
            model.name: standing
            for model in snapshot.catalog.sorted_models()
            if model.max_replicas is not None and (standing := _standing(before, snapshot, model)) is not None
        },
        held_before=_held_before(before, snapshot),
    )


def is_pressed(snapshot: Snapshot, model: Model, now: float) -> bool:
    """Requests wait although it serves: held or queued by a router, or each replica runs as many as its
    profile says it runs at once. What waits for a cold model is an activation's business."""
    serving = [row for row in snapshot.stored.by_model.get(model.name, ()) if is_routable(row, snapshot, now)]
    if not serving:
        return False
    return bool(snapshot.held.get(model.name)) or all(_is_full(snapshot, model, row) for row in serving)


def _is_full(snapshot: Snapshot, model: Model, row: ReplicaRow) -> bool:
    profile = model.profile(row.profile)
    if profile is None or profile.concurrency is None:
        return False
    sent = sum(report.in_flight.get(row.replica_id, 0) for report in fresh_routers(snapshot).values())
    return max(sent, _running(snapshot, row)) >= profile.concurrency


def _running(snapshot: Snapshot, row: ReplicaRow) -> int:
    """By the engines' own gauges; 0 where none says anything."""
    reports = (report_of(snapshot, shard) for shard in row.shards)
    return sum(report.running or 0 for report in reports if report is not None)


def _ran_at(before: Watched, snapshot: Snapshot, now: float) -> dict[str, float]:
    found = {}
    for row in snapshot.stored.sorted_replicas:
        if row.phase not in JUDGED:
            continue
        if _running(snapshot, row):
            found[row.endpoint_id] = now
        elif row.endpoint_id in before.ran_at:
            found[row.endpoint_id] = before.ran_at[row.endpoint_id]
    return found


def _held_before(before: Watched, snapshot: Snapshot) -> dict[str, bool]:
    """Asked when a start is first seen: a moment later its nodes may hold what they have just fetched."""
    found = {}
    for row in snapshot.stored.sorted_replicas:
        if row.phase not in (Phase.RESERVED, Phase.STARTING):
            continue
        held = before.held_before.get(row.endpoint_id)
        model = snapshot.catalog.models.get(row.model)
        if held is None and model is not None:
            held = held_where_placed(snapshot, row, model)
        if held is not None:
            found[row.endpoint_id] = held
    return found


def _standing(before: Watched, snapshot: Snapshot, model: Model) -> int | None:
    """How many there were before the rollout under way began; None while none is."""
    rows = [row for row in snapshot.stored.by_model.get(model.name, ()) if row.wish is Wish.SERVE]
    if not any(_is_replaced(snapshot, row, model) for row in rows):
        return None
    return before.standing.get(model.name, len(rows))


def _is_replaced(snapshot: Snapshot, row: ReplicaRow, model: Model) -> bool:
    """A rollout, or the draining of a node, puts another in its place."""
    nodes = (snapshot.stored.nodes.get(shard.node_id) for shard in row.shards)
    return not is_current(row, model) or any(
        node is not None and node.schedulability is Schedulability.DRAINING for node in nodes
    )
