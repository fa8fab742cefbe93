"""Filters: what keeps a shard off a node, each with its word; a node falls to the first that applies."""

from dataclasses import dataclass

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Device, Room, Use
from llmgw_controller.core.explain import Reason
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.memory import Measured, MemoryClaim, memory_claim
from llmgw_controller.core.port_bands import Band, bands, lease
from llmgw_controller.core.rows import Schedulability
from llmgw_kit.ids import NodeId, ReplicaId


@dataclass(frozen=True)
class Ask:
    """What one shard asks of its node; equal asks fall to the same filters, whosever they are."""

    engine: str
    gpu_class: str
    gpus: int
    memory: MemoryClaim
    whole_nodes: bool
    #: It has siblings, which must share a fabric with it.
    gang: bool
    pool: str | None
    node_ids: tuple[NodeId, ...]
    bands: tuple[Band, ...]

    def gpus_on(self, room: Room) -> int:
        """How many it takes there: all, if it asks for whole nodes."""
        return max(self.gpus, len(room.devices)) if self.whole_nodes else self.gpus


def ask_of(model: Model, profile: Profile, measured: Measured) -> Ask:
    """Of each shard of the profile."""
    return Ask(
        engine=profile.engine.value,
        gpu_class=profile.gpu_class,
        gpus=profile.gpus_per_node,
        memory=memory_claim(model, profile, measured),
        whole_nodes=profile.whole_nodes,
        gang=profile.nodes > 1,
        pool=profile.pool,
        node_ids=profile.node_ids,
        bands=bands(profile),
    )


def first_reason(room: Room, ask: Ask, evictable: frozenset[ReplicaId]) -> Reason | None:
    """The first thing that keeps a shard off this node; None: it fits now."""
    return never(room, ask) or _not_now(room, ask) or _too_full(room, ask, evictable)


def never(room: Room, ask: Ask) -> Reason | None:
    """What no waiting changes: the ceiling, asked before anything else."""
    of_class = [device for device in room.devices if device.gpu_class == ask.gpu_class]
    if not of_class:
        return Reason.WRONG_CLASS
    if len(of_class) < ask.gpus:
        return Reason.TOO_FEW_DEVICES
    if len([device for device in of_class if _large_enough(device, ask)]) < ask.gpus_on(room):
        # A whole node of one class with one smaller device is no whole node for it either.
        mixed = ask.whole_nodes and len(of_class) < len(room.devices)
        return Reason.NOT_WHOLE if mixed else Reason.TOO_LITTLE_MEMORY
    if ask.pool is not None and room.node.pool != ask.pool:
        return Reason.POOL
    if ask.pool is None and room.node.pool is not None:
        return Reason.POOL  # Nodes set aside take only what asks for them.
    if ask.node_ids and room.node.node_id not in ask.node_ids:
        return Reason.PINNED_ELSEWHERE
    if ask.gang and not room.node.fabrics:
        return Reason.NO_FABRIC
    return None


def _not_now(room: Room, ask: Ask) -> Reason | None:
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
    if room.engines is None or ask.engine not in room.engines:
        return Reason.ENGINE_MISSING
    return None


def _too_full(room: Room, ask: Ask, evictable: frozenset[ReplicaId]) -> Reason | None:
    """What others hold."""
    needed = ask.gpus_on(room)
    fitting = [device for device in room.devices if suits(device, ask)]
    if len([device for device in fitting if device.use is not Use.UNHEALTHY]) < needed:
        return Reason.UNHEALTHY_DEVICES
    unclaimed = [device for device in fitting if device.use is Use.FREE]
    promised = len([device for device in unclaimed if device.promised])
    free = len([device for device in unclaimed if is_free(device, ask)])
    idle = len([device for device in fitting if comes_free(device, ask, evictable)])
    # A device with foreign memory below the threshold is free to whoever needs less than what is left.
    foreign = len([device for device in fitting if device.use is Use.FOREIGN])
    foreign += len(unclaimed) - promised - free
    if free < needed:
        if free + promised >= needed:
            return Reason.PROMISED
        if free + idle >= needed:
            return Reason.HELD_BY_IDLE
        if free + idle + foreign >= needed:
            return Reason.FOREIGN_USE
        return Reason.NOT_ENOUGH_FREE
    if lease(room.node.engine_ports, room.taken_ports, ask.bands) is None:
        return Reason.PORTS_EXHAUSTED
    return None


def suits(device: Device, ask: Ask) -> bool:
    """Of the class and large enough, whoever holds it."""
    return device.gpu_class == ask.gpu_class and _large_enough(device, ask)


def is_free(device: Device, ask: Ask) -> bool:
    """It may be taken now: nobody's, kept for nobody, and with the memory that is claimed."""
    return device.use is Use.FREE and not device.promised and _usable(device, ask)


def comes_free(device: Device, ask: Ask, leaving: frozenset[ReplicaId]) -> bool:
    """It may be taken once these have left."""
    held = device.use is Use.CLAIMED and device.replica_id in leaving and not device.stale
    return held and _usable(device, ask)


def _large_enough(device: Device, ask: Ask) -> bool:
    return _holds(device.memory_total_bytes, ask)


def _usable(device: Device, ask: Ask) -> bool:
    return _holds(device.usable_bytes, ask)


def _holds(size_bytes: int | None, ask: Ask) -> bool:
    # An unknown size is not a small one: the engine will tell.
    claimed = ask.memory.size_bytes
    return claimed is None or size_bytes is None or size_bytes >= claimed
