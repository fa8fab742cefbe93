"""Filters: what keeps a shard off a node, each with its word; a node falls to the first that applies."""

from llmgw_controller.core.catalog import Profile
from llmgw_controller.core.claims import Device, Room, Use
from llmgw_controller.core.explain import Reason
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.state import Schedulability
from llmgw_kit.ids import ReplicaId


def first_reason(room: Room, profile: Profile, evictable: frozenset[ReplicaId]) -> Reason | None:
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
    fitting = [device for device in room.devices if suits(device, profile)]
    if len([device for device in fitting if device.use is not Use.UNHEALTHY]) < profile.gpus_per_node:
        return Reason.UNHEALTHY_DEVICES
    free = len([device for device in fitting if device.use is Use.FREE])
    idle = len([device for device in fitting if held_by(device, evictable)])
    foreign = len([device for device in fitting if device.use is Use.FOREIGN])
    if free < profile.gpus_per_node:
        if free + idle >= profile.gpus_per_node:
            return Reason.HELD_BY_IDLE
        if free + idle + foreign >= profile.gpus_per_node:
            return Reason.FOREIGN_USE
        return Reason.NOT_ENOUGH_FREE
    if len(free_ports(room, 1 + len(profile.extra_ports))) < 1 + len(profile.extra_ports):
        return Reason.PORTS_EXHAUSTED
    return None


def free_ports(room: Room, count: int) -> list[int]:
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


def suits(device: Device, profile: Profile) -> bool:
    return device.gpu_class == profile.gpu_class and _large_enough(device, profile)


def _large_enough(device: Device, profile: Profile) -> bool:
    # An unknown size is not a small one: the engine will tell.
    if profile.memory_bytes is None or device.memory_total_bytes is None:
        return True
    return device.memory_total_bytes >= profile.memory_bytes


def held_by(device: Device, evictable: frozenset[ReplicaId]) -> bool:
    return device.use is Use.CLAIMED and device.replica_id in evictable and not device.stale
