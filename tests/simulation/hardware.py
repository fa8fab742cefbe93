"""A node's devices, disk and ports, and what befalls them; each trouble ends by itself."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llmgw_controller.core.heard import DeviceReport, DeviceState
from llmgw_controller.core.rows import DeviceRow, NodeRow, Schedulability
from llmgw_kit.ids import DeviceId, NodeId, SessionEpoch

if TYPE_CHECKING:
    from tests.simulation.sim import Sim

GIB = 1024**3
MEMORY_BYTES = 24 * GIB


@dataclass(frozen=True)
class Trouble:
    state: DeviceState
    reason: str | None
    foreign_bytes: int
    until: float


@dataclass
class Hardware:
    devices: dict[DeviceId, Trouble] = field(default_factory=dict)
    disk_full_until: float = 0.0
    #: Port -> until when somebody else listens there.
    thieves: dict[int, float] = field(default_factory=dict)

    def fail(self, sim: "Sim", row: NodeRow) -> frozenset[DeviceId]:
        """Something happens to one device; which ones an engine cannot go on with."""
        world = sim.world
        device_id = world.rng.choice(row.devices).device_id
        until = world.now + world.between(10.0, 300.0)
        kind = world.rng.choice(["unhealthy", "missing", "foreign"])
        sim.landed(f"device {kind}")
        world.note(row.node_id, f"{device_id} is {kind}")
        if kind == "foreign":
            self.devices[device_id] = Trouble(DeviceState.HEALTHY, None, 20 * GIB, until)
            return frozenset()
        state = DeviceState.UNHEALTHY if kind == "unhealthy" else DeviceState.MISSING
        self.devices[device_id] = Trouble(state, "xid_79", 0, until)
        # Of a suspected device an engine may know nothing.
        return frozenset({device_id} if kind == "missing" or world.chance(0.5) else ())

    def heal(self) -> None:
        """All at once: times of peace."""
        self.devices, self.disk_full_until, self.thieves = {}, 0.0, {}

    def disk_full(self, now: float) -> bool:
        return now < self.disk_full_until

    def stolen(self, ports: Collection[int], now: float) -> bool:
        return any(now < self.thieves.get(port, 0.0) for port in ports)

    def usable(self, device_id: DeviceId, now: float) -> bool:
        """Healthy, and nobody else's."""
        trouble = self.devices.get(device_id)
        return trouble is None or now >= trouble.until

    def reports(self, row: NodeRow, now: float) -> tuple[DeviceReport, ...]:
        """The inventory as the agent sees it."""
        return tuple(self._report(device, now) for device in row.devices)

    def _report(self, device: DeviceRow, now: float) -> DeviceReport:
        plain = DeviceReport(
            device_id=device.device_id,
            index=device.index,
            gpu_class=device.gpu_class,
            vendor="simulated",
            memory_total_bytes=device.memory_total_bytes,
            memory_used_bytes=None,
            foreign_used_bytes=None,
            temperature_celsius=None,
            power_watts=None,
            driver_version=None,
            state=DeviceState.HEALTHY,
            reason=None,
        )
        trouble = self.devices.get(device.device_id)
        if trouble is None or now >= trouble.until:
            return plain
        return replace(
            plain,
            state=trouble.state,
            reason=trouble.reason,
            foreign_used_bytes=trouble.foreign_bytes or None,
        )


def device_rows(name: str, gpus: int) -> tuple[DeviceRow, ...]:
    """What such a node has."""
    return tuple(DeviceRow(DeviceId(f"{name}:{index}"), index, "L4", MEMORY_BYTES) for index in range(gpus))


def node_row(name: str, gpus: int, fabrics: tuple[str, ...]) -> NodeRow:
    """As its agent says in its first word."""
    return NodeRow(
        node_id=NodeId(name),
        boot_id="boot",
        agent_instance="",
        version="1",
        address=name,
        fabrics=fabrics,
        pool=None,
        engine_ports=(20000, 20049),
        devices=device_rows(name, gpus),
        schedulability=Schedulability.SCHEDULABLE,
        session_epoch=SessionEpoch(0),
        last_heard=0.0,
        lost_at=None,
    )
