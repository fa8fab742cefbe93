"""Moving: what becomes of each replica on a node that is drained, told before it happens.

Found by the planner's own search over the rooms as they will be, in the order in which a pass places, so
that what is told is what is done while nothing else changes.
"""

from dataclasses import dataclass, replace
from enum import Enum

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.catalog import Model, Rollout
from llmgw_controller.core.claims import Rooms, rooms, with_claim
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.loads import eta
from llmgw_controller.core.placement import Placement, place
from llmgw_controller.core.placing import rank
from llmgw_controller.core.roster import live
from llmgw_controller.core.rows import NodeRow, Phase, ReplicaRow, Schedulability, Wish
from llmgw_controller.core.scale import target
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ReplicaId


class Moving(Enum):
    """Of one replica."""

    #: Its successor serves before it drains.
    MOVES = "moves"
    #: Only its own leaving makes the room, or its spec says so.
    STOPS_FIRST = "stops first"
    #: Nothing takes it down before there is room for its successor.
    STAYS = "stays until room is found"
    #: It goes without a successor.
    LEAVES = "leaves"


@dataclass(frozen=True)
class Step:
    replica_id: ReplicaId
    moving: Moving
    text: str


def drained(snapshot: Snapshot, node: NodeRow) -> Snapshot:
    """The snapshot with the node draining."""
    nodes = {
        **snapshot.stored.nodes,
        node.node_id: replace(node, schedulability=Schedulability.DRAINING),
    }
    return replace(snapshot, stored=replace(snapshot.stored, nodes=nodes))


def steps(snapshot: Snapshot, node: NodeRow, now: float) -> tuple[Step, ...]:
    """One for each replica that holds something on the node, by id."""
    after = drained(snapshot, node)
    draft = Draft(after, now, Verdicts())
    held = [
        row
        for row in draft.replicas()
        if any(shard.node_id == node.node_id and not shard.released for shard in row.shards)
    ]
    found = rooms(after, now)
    done: list[Step] = []
    going: dict[str, int] = {}
    for row in sorted(held, key=lambda row: (*_order(after, row), row.replica_id)):
        model = after.catalog.models.get(row.model)
        if row.wish is not Wish.SERVE:
            done.append(Step(row.replica_id, Moving.LEAVES, f"is leaving already ({row.reason or 'wished'})"))
        elif model is None:
            done.append(Step(row.replica_id, Moving.LEAVES, "its model is removed"))
        elif len(live(draft, model.name)) - going.get(model.name, 0) > target(draft, model):
            going[model.name] = going.get(model.name, 0) + 1
            done.append(Step(row.replica_id, Moving.LEAVES, "one more than is wanted"))
        else:
            step, found = _successor(after, row, model, found)
            done.append(step)
    return tuple(sorted(done, key=lambda step: step.replica_id))


def _order(snapshot: Snapshot, row: ReplicaRow) -> tuple[int, int, int, float]:
    """As `placing` does it; of a model that is gone it does not matter."""
    model = snapshot.catalog.models.get(row.model)
    return *(rank(model) if model else (0, 0, 0)), row.created_at


def _successor(snapshot: Snapshot, row: ReplicaRow, model: Model, found: Rooms) -> tuple[Step, Rooms]:
    answer = place(model, found, replica_id=row.replica_id, group_epoch=row.group_epoch + 1)
    if not isinstance(answer, Placement):
        # The same search with this replica gone: what the rollout asks before it takes one down.
        alone = frozenset({row.replica_id})
        again = place(
            model, found, replica_id=row.replica_id, group_epoch=row.group_epoch + 1, evictable=alone
        )
        if not isinstance(again, Placement) and again.fit is Fit.AFTER_EVICTION:
            text = "no room for both: it drains, then starts in the room it leaves on other nodes"
            return Step(row.replica_id, Moving.STOPS_FIRST, text), found
        return Step(row.replica_id, Moving.STAYS, f"no room elsewhere: {answer.reason()}"), found
    for shard in answer.shards:
        found = with_claim(
            found,
            model.name,
            row.replica_id,
            shard.node_id,
            shard.device_ids,
            tuple(port for _, port in shard.ports),
        )
    where = ", ".join(shard.node_id for shard in answer.shards)
    measured = eta(snapshot.stored.loads, model.name, answer.profile)
    ready = f", ready in about {lasting(measured.p50_s)}" if measured else ""
    if row.phase is not Phase.READY:
        text = f"it is {row.phase.value} and serves nobody: it stops and starts on {where}{ready}"
        return Step(row.replica_id, Moving.STOPS_FIRST, text), found
    if model.rollout is Rollout.STOP_FIRST:
        text = f"its spec says stop first: it drains, then starts on {where}{ready}"
        return Step(row.replica_id, Moving.STOPS_FIRST, text), found
    return Step(
        row.replica_id, Moving.MOVES, f"its successor starts on {where}{ready}; then it drains"
    ), found
