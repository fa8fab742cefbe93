"""Capacity: every device in exactly one part, and the parts summed per class and per fabric."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.activity import Busy, Idle, Verdict, Verdicts
from llmgw_controller.core.claims import Device, Room, Rooms, Use
from llmgw_controller.core.idleness import JUDGED
from llmgw_controller.core.state import Stored
from llmgw_kit.ids import ReplicaId


class Part(Enum):
    """Of a bar, in its order. STARTING: claimed by a replica on its way up or down."""

    BUSY = "busy"
    IDLE = "idle"
    UNKNOWN = "unknown"
    STARTING = "starting"
    UNHEALTHY = "unhealthy"
    FOREIGN = "foreign"
    CORDONED = "cordoned"
    FREE = "free"


@dataclass(frozen=True)
class Parts:
    busy: int = 0
    idle: int = 0
    unknown: int = 0
    starting: int = 0
    unhealthy: int = 0
    foreign: int = 0
    cordoned: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, part.value) for part in Part)


@dataclass(frozen=True)
class DeviceLine:
    device: Device
    part: Part
    #: Of the replica that holds it; None: none holds it, or of that one nothing can be judged.
    verdict: Verdict | None


@dataclass(frozen=True)
class ClassCapacity:
    gpu_class: str
    total: int
    parts: Parts
    #: None when a device of the class does not tell its size.
    memory_total_bytes: int | None
    #: Of the devices that are free as a whole.
    memory_free_bytes: int | None


@dataclass(frozen=True)
class FabricLine:
    """`fabric` is "" for the nodes that are on none."""

    fabric: str
    nodes: int
    whole_free: int
    whole_free_if_idle_left: int
    gpu_classes: tuple[str, ...]


def device_line(device: Device, stored: Stored, verdicts: Verdicts) -> DeviceLine:
    """Its part of the bar. A stale engine's device is claimed, and of its idleness nothing is known."""
    if device.use is not Use.CLAIMED:
        return DeviceLine(device, Part(device.use.value), None)
    row = stored.replicas.get(device.replica_id) if device.replica_id else None
    if device.stale or row is None:
        return DeviceLine(device, Part.UNKNOWN, None)
    if row.phase not in JUDGED:
        return DeviceLine(device, Part.STARTING, None)
    verdict = verdicts.by_replica.get(row.replica_id)
    part = Part.UNKNOWN
    if isinstance(verdict, Busy):
        part = Part.BUSY
    elif isinstance(verdict, Idle):
        part = Part.IDLE
    return DeviceLine(device, part, verdict)


def parts(lines: Iterable[DeviceLine]) -> Parts:
    counts = dict.fromkeys(Part, 0)
    for line in lines:
        counts[line.part] += 1
    return Parts(**{part.value: count for part, count in counts.items()})


def classes(lines: Iterable[DeviceLine]) -> tuple[ClassCapacity, ...]:
    by_class: dict[str, list[DeviceLine]] = {}
    for line in lines:
        by_class.setdefault(line.device.gpu_class, []).append(line)
    return tuple(
        ClassCapacity(
            gpu_class,
            len(found),
            parts(found),
            _memory(found),
            _memory([line for line in found if line.part is Part.FREE]),
        )
        for gpu_class, found in sorted(by_class.items())
    )


def fabrics(rooms: Rooms, idle: frozenset[ReplicaId]) -> tuple[FabricLine, ...]:
    """One line a fabric, and one for nodes on none; nothing at all where no fabric is declared."""
    names = sorted({fabric for room in rooms.values() for fabric in room.node.fabrics})
    if not names:
        return ()
    members = [(name, [room for room in rooms.values() if name in room.node.fabrics]) for name in names]
    if alone := [room for room in rooms.values() if not room.node.fabrics]:
        members.append(("", alone))
    return tuple(
        FabricLine(
            fabric=name,
            nodes=len(found),
            whole_free=sum(_whole(room, frozenset()) for room in found),
            whole_free_if_idle_left=sum(_whole(room, idle) for room in found),
            gpu_classes=tuple(sorted({device.gpu_class for room in found for device in room.devices})),
        )
        for name, found in members
    )


def _whole(room: Room, idle: frozenset[ReplicaId]) -> bool:
    """Every device could take a shard: free, or held only by what is idle, on a node that takes work."""
    return (
        room.takes_work
        and bool(room.devices)
        and all(
            device.use is Use.FREE
            or (device.use is Use.CLAIMED and not device.stale and device.replica_id in idle)
            for device in room.devices
        )
    )


def _memory(lines: list[DeviceLine]) -> int | None:
    sizes = [line.device.memory_total_bytes for line in lines]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
