"""GPUs as the agent reports them: what they are, what they show, and who uses their memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from llmgw_agent.core.faults import Fault
from llmgw_kit.ids import DeviceId


class DeviceState(Enum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    MISSING = "missing"


@dataclass(frozen=True)
class ForeignProcess:
    """A process with memory on a device that no agent of ours started. None: it cannot be seen from here."""

    pid: int
    name: str | None
    user: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class OwnUse:
    """What one engine of ours has of a device; `pid` is its first process's."""

    pid: int
    memory_bytes: int


@dataclass(frozen=True)
class Holder:
    """A process that the driver says has memory on a device."""

    pid: int
    #: None: the driver does not tell.
    memory_bytes: int | None
    #: First process of the engine of ours it belongs to; None: it is of none, as far as can be seen.
    engine_pid: int | None
    #: False: there is no such process in this agent's /proc, so whose it is cannot be told.
    seen: bool
    name: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class Holders:
    """Whose a device's memory is. The parts never exceed the whole."""

    own: tuple[OwnUse, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()
    #: None: of some process it cannot be told, and part of a sum is not the sum.
    foreign_bytes: int | None = 0


def shared_out(holders: Iterable[Holder]) -> Holders:
    """Own engines apart from the rest, by pid; one engine's processes are summed."""
    own: dict[int, int] = {}
    foreign: list[ForeignProcess] = []
    foreign_bytes: int | None = 0
    for one in sorted(holders, key=lambda holder: holder.pid):
        if one.engine_pid is not None:
            own[one.engine_pid] = own.get(one.engine_pid, 0) + (one.memory_bytes or 0)
            continue
        if not one.seen or one.memory_bytes is None:
            foreign_bytes = None
        elif foreign_bytes is not None:
            foreign_bytes += one.memory_bytes
        if one.seen:
            foreign.append(ForeignProcess(one.pid, one.name, one.user, one.memory_bytes))
    uses = tuple(OwnUse(pid, size) for pid, size in sorted(own.items()) if size)
    return Holders(uses, tuple(foreign), foreign_bytes)


@dataclass(frozen=True)
class Device:
    """One GPU. Memory in bytes; None is unknown, never 0."""

    device_id: DeviceId
    index: int
    gpu_class: str
    vendor: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    #: Of processes that no agent of ours started.
    foreign_used_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    driver_version: str | None = None
    state: DeviceState = DeviceState.HEALTHY
    #: Set unless healthy.
    reason: str | None = None
    #: Unix seconds since when state and reason are as they are; None: since before it was watched.
    since: float | None = None
    #: The newest, healed or not.
    fault: Fault | None = None
    #: Things to know that hurt nobody yet, for people.
    notes: tuple[str, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()
    #: Stays on this node: it is told with each shard.
    own: tuple[OwnUse, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """What this node is. Disk figures are those of the data folder."""

    hostname: str
    management_address: str
    devices: tuple[Device, ...]
    fabrics: tuple[str, ...]
    pool: str | None
    engine_ports: tuple[int, int]
    engines: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None


Brief = tuple[
    DeviceId, DeviceState, str | None, Fault | None, tuple[str, ...], tuple[tuple[int, str | None], ...]
]


def brief(devices: Iterable[Device]) -> tuple[Brief, ...]:
    """What the controller must hear of at once: a device's state, its newest fault, who is on it. Readings
    drift all the time and are left out."""
    return tuple(
        (d.device_id, d.state, d.reason, d.fault, d.notes, tuple((f.pid, f.name) for f in d.foreign))
        for d in devices
    )


#: Words of NVML's product names that tell nothing about the class.
_NOISE = frozenset(
    {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GENERATION", "PCIE", "SXM", "NVL", "LAPTOP", "GPU"}
)


def gpu_class_of(product: str) -> str:
    """The class profiles ask for: "NVIDIA H100 80GB HBM3" is "H100", "NVIDIA GeForce RTX 4090" is
    "RTX 4090", "NVIDIA A100-SXM4-80GB" is "A100". An unknown shape keeps its whole name."""
    words = product.replace("-", " ").split()
    kept = []
    for word in words:
        upper = word.upper()
        if upper.rstrip("0123456789") in _NOISE or upper in _NOISE:
            continue
        if upper.endswith("GB") or upper.startswith("HBM"):
            break
        kept.append(word)
    return " ".join(kept) or product
