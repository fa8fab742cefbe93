"""Placement: choose nodes, devices and ports for all shards of one replica, or say why not.

Pure: the same rooms give the same answer, so a placement can be replayed from a recorded snapshot.
A replica lands as a whole inside one fabric or not at all; one node is the case of one shard, which
needs no fabric. First filters, each with a word, then a score; the explanation is made of the same
filters, and the ceiling (would it fit if all that is evictable were gone) is the same search again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Room, Rooms, Use
from llmgw_controller.core.explain import Explanation, Filtered, Fit, NearMiss, Reason, Spot
from llmgw_controller.core.filters import first_reason, free_ports, held_by, suits
from llmgw_controller.core.state import ShardRow
from llmgw_kit.ids import NodeId, ReplicaId, ShardId

#: Lower is better; its parts are told at `_score`.
Score = tuple[bool, bool, int, int]

#: Searching the smallest set of leaving replicas is exponential; a node holds few.
MAX_LEAVING = 8


@dataclass(frozen=True)
class Placement:
    profile: Profile
    shards: tuple[ShardRow, ...]
    explanation: Explanation


@dataclass(frozen=True)
class Refusal:
    """Of every profile tried, in order of preference; at least one."""

    explanations: tuple[Explanation, ...]

    @property
    def fit(self) -> Fit:
        """The best that any profile may hope for."""
        order = list(Fit)
        return min((one.fit for one in self.explanations), key=order.index)

    def reason(self) -> str:
        first, *others = self.explanations
        if not others:
            return first.reason()
        return "; ".join(f"{one.profile}: {one.reason()}" for one in (first, *others))


def place(
    model: Model,
    rooms: Rooms,
    *,
    replica_id: ReplicaId,
    group_epoch: int,
    evictable: frozenset[ReplicaId] = frozenset(),
    memo: "Memo | None" = None,
) -> Placement | Refusal:
    """The first of the model's profiles that fits. `evictable` only explains; nothing is evicted here.
    `memo` may be shared by calls with one `evictable`: it makes many placements in a row quick."""
    refused: list[Explanation] = []
    for profile in model.profiles:
        explanation = explain(model, profile, rooms, evictable=evictable, memo=memo)
        if explanation.fit is Fit.NOW:
            shards = tuple(
                ShardRow(
                    shard_id=ShardId(f"{replica_id}.{group_epoch}.{rank}"),
                    node_id=spot.node_id,
                    rank=rank,
                    device_ids=spot.device_ids,
                    ports=_ports(rooms[spot.node_id], profile),
                )
                for rank, spot in enumerate(explanation.spots)
            )
            return Placement(profile, shards, explanation)
        refused.append(explanation)
    return Refusal(tuple(refused))


class Memo:
    """What was found of each node, for as long as the node is the same: one placement changes one of them,
    and a fleet's start asks of hundreds of nodes a thousand times."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[Room, Reason | None, Score]] = {}

    def look(
        self, model: Model, profile: Profile, room: Room, evictable: frozenset[ReplicaId]
    ) -> tuple[Reason | None, Score]:
        key = (model.name, profile.name, room.node.node_id)
        known = self._found.get(key)
        if known is None or known[0] is not room:
            known = (room, first_reason(room, profile, evictable), _score(model, profile, room))
            self._found[key] = known
        return known[1], known[2]


def explain(
    model: Model,
    profile: Profile,
    rooms: Rooms,
    *,
    evictable: frozenset[ReplicaId] = frozenset(),
    memo: Memo | None = None,
) -> Explanation:
    """What the planner finds for one profile: where it goes, or what is in the way of each node."""
    filtered: dict[Reason, list[NodeId]] = {}
    fitting: list[NodeId] = []
    ceiling: list[NodeId] = []
    near: list[NearMiss] = []
    scores: dict[NodeId, Score] = {}
    memo = memo or Memo()
    for node_id, room in rooms.items():  # By id: `claims.rooms` sorts them.
        reason, scores[node_id] = memo.look(model, profile, room, evictable)
        if reason is None:
            fitting.append(node_id)
            ceiling.append(node_id)
            continue
        filtered.setdefault(reason, []).append(node_id)
        if reason is Reason.HELD_BY_IDLE:
            ceiling.append(node_id)
            near.append(_near_miss(room, profile, evictable))
    chosen = _choose(profile, rooms, scores, fitting)
    leaving: tuple[ReplicaId, ...] = ()
    if chosen is not None:
        fit = Fit.NOW
    else:
        # The ceiling: the same search with all that is evictable gone, fewest leaving first.
        evict = {miss.node_id: miss.evict for miss in near}
        emptied = _choose(profile, rooms, scores, ceiling, evict)
        fit = Fit.NEVER if emptied is None else Fit.AFTER_EVICTION
        leaving = tuple(sorted({name for node_id in emptied or () for name in evict.get(node_id, ())}))
    return Explanation(
        profile=profile.name,
        fit=fit,
        needs=_needs(profile),
        nodes_needed=profile.nodes,
        considered=len(rooms),
        filters=tuple(Filtered(reason, tuple(filtered[reason])) for reason in Reason if reason in filtered),
        fitting=tuple(fitting),
        near_misses=tuple(near),
        leaving=leaving,
        spots=tuple(_spot(rooms[node_id], profile) for node_id in chosen or ()),
    )


def _choose(
    profile: Profile,
    rooms: Rooms,
    scores: Mapping[NodeId, Score],
    fitting: Iterable[NodeId],
    evict: Mapping[NodeId, tuple[ReplicaId, ...]] = MappingProxyType({}),
) -> tuple[NodeId, ...] | None:
    """The best nodes for all shards, by rank; None when no fabric holds them all."""
    nodes = list(fitting)
    if profile.nodes == 1:
        groups = [nodes]
    else:
        fabrics = sorted({fabric for node_id in nodes for fabric in rooms[node_id].node.fabrics})
        groups = [[n for n in nodes if fabric in rooms[n].node.fabrics] for fabric in fabrics]
    best: tuple[tuple[tuple[int, bool, bool, int, int], ...], tuple[NodeId, ...]] | None = None
    for group in groups:
        if len(group) < profile.nodes:
            continue
        scored = sorted(((len(evict.get(node_id, ())), *scores[node_id]), node_id) for node_id in group)
        picked = scored[: profile.nodes]
        # Among fabrics the one whose worst node is best; then by name, for the order is theirs.
        rank = tuple(sorted((score for score, _ in picked), reverse=True))
        candidate = (rank, tuple(sorted(node_id for _, node_id in picked)))
        if best is None or candidate[0] < best[0]:
            best = candidate
    return best[1] if best else None


def _score(model: Model, profile: Profile, room: Room) -> Score:
    """Lower is better: weights are here; no whole node of a fabric is broken up for less than a gang, for
    only whole ones can take one; little stays free beside it, so that other nodes stay whole too; few
    replicas of the same model, so that one node's end does not take them all."""
    missing = model.weights is not None and (model.name, model.weights.version) not in room.weights
    free = len([device for device in room.devices if device.use is Use.FREE])
    breaks = profile.nodes == 1 and bool(room.node.fabrics) and free == len(room.devices)
    return missing, breaks, free - profile.gpus_per_node, dict(room.models).get(model.name, 0)


def _spot(room: Room, profile: Profile) -> Spot:
    free = [device for device in room.devices if suits(device, profile) and device.use is Use.FREE]
    return Spot(room.node.node_id, tuple(device.device_id for device in free[: profile.gpus_per_node]))


def _ports(room: Room, profile: Profile) -> tuple[tuple[str, int], ...]:
    names = sorted({"http", *profile.extra_ports})
    return tuple(zip(names, free_ports(room, len(names)), strict=True))


def _near_miss(room: Room, profile: Profile, evictable: frozenset[ReplicaId]) -> NearMiss:
    fitting = [device for device in room.devices if suits(device, profile)]
    free = len([device for device in fitting if device.use is Use.FREE])
    held: dict[ReplicaId, int] = {}
    for device in fitting:
        if device.replica_id is not None and held_by(device, evictable):
            held[device.replica_id] = held.get(device.replica_id, 0) + 1
    names = sorted(held)[:MAX_LEAVING]
    for size in range(1, len(names) + 1):
        for leaving in combinations(names, size):
            if free + sum(held[name] for name in leaving) >= profile.gpus_per_node:
                return NearMiss(room.node.node_id, free, profile.gpus_per_node, leaving)
    return NearMiss(room.node.node_id, free, profile.gpus_per_node, tuple(sorted(held)))


def _needs(profile: Profile) -> str:
    gpus = f"{profile.gpus_per_node} {profile.gpu_class}"
    if profile.nodes == 1:
        return f"1 node with {gpus} free"
    return f"{profile.nodes} nodes with {gpus} free each, on one fabric"
