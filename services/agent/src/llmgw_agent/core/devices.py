"""GPUs as the agent reports them, and what their vendor's codes mean."""

from dataclasses import dataclass
from enum import Enum

from llmgw_kit.ids import DeviceId


class DeviceState(Enum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    MISSING = "missing"


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


#: Xid codes that an application's own fault causes; the device is fine. NVIDIA's "Xid Errors" page and
#: the list its Kubernetes device plugin passes over.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


def xid_reason(code: int) -> str | None:
    """Why the device is unhealthy after this Xid, None when it is not."""
    return None if code in APPLICATION_XIDS else f"xid_{code}"


def health_changed(before: tuple[Device, ...], after: tuple[Device, ...]) -> bool:
    """Whether placement must hear of it: a device came, went, or changed its state or reason."""

    def brief(devices: tuple[Device, ...]) -> dict[DeviceId, tuple[DeviceState, str | None]]:
        return {one.device_id: (one.state, one.reason) for one in devices}

    return brief(before) != brief(after)


def with_missing(known: tuple[Device, ...], seen: tuple[Device, ...]) -> tuple[Device, ...]:
    """`seen`, plus what was there before and is not any more, as MISSING: a device that fell off the
    bus is a fault to show, not one GPU less."""
    here = {one.device_id for one in seen}
    gone = [
        Device(
            device_id=one.device_id, index=one.index, gpu_class=one.gpu_class, vendor=one.vendor,
            memory_total_bytes=one.memory_total_bytes, driver_version=one.driver_version,
            state=DeviceState.MISSING, reason=one.reason or "vanished",
        )
        for one in known
        if one.device_id not in here
    ]  # fmt: skip
    return tuple(sorted((*seen, *gone), key=lambda one: (one.index, one.device_id)))


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
