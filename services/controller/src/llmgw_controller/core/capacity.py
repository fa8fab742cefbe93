"""Capacity: every device in exactly one part, and the parts summed per class."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.activity import Busy, Idle, Verdict, Verdicts
from llmgw_controller.core.claims import Device, Use
from llmgw_controller.core.idleness import JUDGED
from llmgw_controller.core.rows import Stored


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


def _memory(lines: list[DeviceLine]) -> int | None:
    sizes = [line.device.memory_total_bytes for line in lines]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
