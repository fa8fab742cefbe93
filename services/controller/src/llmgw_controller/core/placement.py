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
from llmgw_controller.core.claims import Device, Room, Rooms, Use
from llmgw_controller.core.explain import Explanation, Filtered, Fit, NearMiss, Reason, Spot
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.state import Schedulability, ShardRow
from llmgw_kit.ids import NodeId, ReplicaId, ShardId

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
) -> Placement | Refusal:
    """The first of the model's profiles that fits. `evictable` only explains; nothing is evicted here."""
    refused: list[Explanation] = []
    for profile in model.profiles:
        explanation = explain(model, profile, rooms, evictable=evictable)
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


def explain(
    model: Model, profile: Profile, rooms: Rooms, *, evictable: frozenset[ReplicaId] = frozenset()
) -> Explanation:
    """What the planner finds for one profile: where it goes, or what is in the way of each node."""
    filtered: dict[Reason, list[NodeId]] = {}
    fitting: list[NodeId] = []
    ceiling: list[NodeId] = []
    near: list[NearMiss] = []
    for node_id in sorted(rooms):
        room = rooms[node_id]
        reason = _filter(room, profile, evictable)
        if reason is None:
            fitting.append(node_id)
            ceiling.append(node_id)
            continue
        filtered.setdefault(reason, []).append(node_id)
        if reason is Reason.HELD_BY_IDLE:
            ceiling.append(node_id)
            near.append(_near_miss(room, profile, evictable))
    chosen = _choose(model, profile, rooms, fitting)
    leaving: tuple[ReplicaId, ...] = ()
    if chosen is not None:
        fit = Fit.NOW
    else:
        # The ceiling: the same search with all that is evictable gone, fewest leaving first.
        evict = {miss.node_id: miss.evict for miss in near}
        emptied = _choose(model, profile, rooms, ceiling, evict)
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


def _filter(room: Room, profile: Profile, evictable: frozenset[ReplicaId]) -> Reason | None:
    """The first thing that keeps a shard off this node; None: it fits now."""
    return _never(room, profile) or _not_now(room, profile) or _too_full(room, profile, evictable)


def _never(room: Room, profile: Profile) -> Reason | None:
    """What no waiting changes."""
    of_class = [device for device in room.devices if device.gpu_class == profile.gpu_class]
    if not of_class:
        return Reason.WRONG_CLASS
    if len(of_class) < profile.gpus_per_node:
        return Reason.TOO_FEW_DEVICES
    if len([device for device in of_class if _large_enough(device, profile)]) < profile.gpus_per_node:
        return Reason.TOO_LITTLE_MEMORY
    if profile.pool is not None and room.node.pool != profile.pool:
        return Reason.POOL
    if profile.pool is None and room.node.pool is not None:
        return Reason.POOL  # Nodes set aside take only what asks for them.
    if profile.node_ids and room.node.node_id not in profile.node_ids:
        return Reason.PINNED_ELSEWHERE
    if profile.nodes > 1 and not room.node.fabrics:
        return Reason.NO_FABRIC
    return None


def _not_now(room: Room, profile: Profile) -> Reason | None:
    """What the node's own condition forbids."""
    if room.state is NodeState.LOST:
        return Reason.LOST
    if room.state is NodeState.UNREACHABLE:
        return Reason.UNREACHABLE
    if room.tombstones or room.node.lost_at is not None:
        return Reason.TOMBSTONES
    if room.node.schedulability is Schedulability.CORDONED:
        return Reason.CORDONED
    if room.node.schedulability is Schedulability.DRAINING:
        return Reason.DRAINING
    if not room.takes_work:
        return Reason.NOT_HEARD
    if room.engines is None or profile.engine.value not in room.engines:
        return Reason.ENGINE_MISSING
    return None


def _too_full(room: Room, profile: Profile, evictable: frozenset[ReplicaId]) -> Reason | None:
    """What others hold."""
    fitting = [device for device in room.devices if _suits(device, profile)]
    if len([device for device in fitting if device.use is not Use.UNHEALTHY]) < profile.gpus_per_node:
        return Reason.UNHEALTHY_DEVICES
    free = len([device for device in fitting if device.use is Use.FREE])
    idle = len([device for device in fitting if _held_by(device, evictable)])
    foreign = len([device for device in fitting if device.use is Use.FOREIGN])
    if free < profile.gpus_per_node:
        if free + idle >= profile.gpus_per_node:
            return Reason.HELD_BY_IDLE
        if free + idle + foreign >= profile.gpus_per_node:
            return Reason.FOREIGN_USE
        return Reason.NOT_ENOUGH_FREE
    if len(_free_ports(room, 1 + len(profile.extra_ports))) < 1 + len(profile.extra_ports):
        return Reason.PORTS_EXHAUSTED
    return None


def _choose(
    model: Model,
    profile: Profile,
    rooms: Rooms,
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
        scored = sorted(
            ((len(evict.get(node_id, ())), *_score(model, profile, rooms[node_id])), node_id)
            for node_id in group
        )
        picked = scored[: profile.nodes]
        # Among fabrics the one whose worst node is best; then by name, for the order is theirs.
        rank = tuple(sorted((score for score, _ in picked), reverse=True))
        candidate = (rank, tuple(sorted(node_id for _, node_id in picked)))
        if best is None or candidate[0] < best[0]:
            best = candidate
    return best[1] if best else None


def _score(model: Model, profile: Profile, room: Room) -> tuple[bool, bool, int, int]:
    """Lower is better: weights are here; no whole node of a fabric is broken up for less than a gang, for
    only whole ones can take one; little stays free beside it, so that other nodes stay whole too; few
    replicas of the same model, so that one node's end does not take them all."""
    missing = model.weights is not None and (model.name, model.weights.version) not in room.weights
    free = len([device for device in room.devices if device.use is Use.FREE])
    breaks = profile.nodes == 1 and bool(room.node.fabrics) and free == len(room.devices)
    return missing, breaks, free - profile.gpus_per_node, dict(room.models).get(model.name, 0)


def _spot(room: Room, profile: Profile) -> Spot:
    free = [device for device in room.devices if _suits(device, profile) and device.use is Use.FREE]
    return Spot(room.node.node_id, tuple(device.device_id for device in free[: profile.gpus_per_node]))


def _ports(room: Room, profile: Profile) -> tuple[tuple[str, int], ...]:
    names = sorted({"http", *profile.extra_ports})
    return tuple(zip(names, _free_ports(room, len(names)), strict=True))


def _free_ports(room: Room, count: int) -> list[int]:
    """The lowest ones; fewer than `count` when the range is used up or the agent named none."""
    if room.node.engine_ports is None:
        return []
    first, last = room.node.engine_ports
    found: list[int] = []
    for port in range(first, last + 1):
        if len(found) == count:
            break
        if port not in room.taken_ports:
            found.append(port)
    return found


def _near_miss(room: Room, profile: Profile, evictable: frozenset[ReplicaId]) -> NearMiss:
    fitting = [device for device in room.devices if _suits(device, profile)]
    free = len([device for device in fitting if device.use is Use.FREE])
    held: dict[ReplicaId, int] = {}
    for device in fitting:
        if device.replica_id is not None and _held_by(device, evictable):
            held[device.replica_id] = held.get(device.replica_id, 0) + 1
    names = sorted(held)[:MAX_LEAVING]
    for size in range(1, len(names) + 1):
        for leaving in combinations(names, size):
            if free + sum(held[name] for name in leaving) >= profile.gpus_per_node:
                return NearMiss(room.node.node_id, free, profile.gpus_per_node, leaving)
    return NearMiss(room.node.node_id, free, profile.gpus_per_node, tuple(sorted(held)))


def _suits(device: Device, profile: Profile) -> bool:
    return device.gpu_class == profile.gpu_class and _large_enough(device, profile)


def _large_enough(device: Device, profile: Profile) -> bool:
    # An unknown size is not a small one: the engine will tell.
    if profile.memory_bytes is None or device.memory_total_bytes is None:
        return True
    return device.memory_total_bytes >= profile.memory_bytes


def _held_by(device: Device, evictable: frozenset[ReplicaId]) -> bool:
    return device.use is Use.CLAIMED and device.replica_id in evictable and not device.stale


def _needs(profile: Profile) -> str:
    gpus = f"{profile.gpus_per_node} {profile.gpu_class}"
    if profile.nodes == 1:
        return f"1 node with {gpus} free"
    return f"{profile.nodes} nodes with {gpus} free each, on one fabric"
