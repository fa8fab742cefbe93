"""What this node is and holds, kept fresh, for whoever reports it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from llmgw_agent.core.devices import Device, Inventory
from llmgw_agent.core.shard import Shard
from llmgw_agent.core.weights import Held
from llmgw_agent.loops.node import Node
from llmgw_agent.loops.waiting import Changes
from llmgw_agent.ports import DeviceProvider, WeightsLike
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import ShardId

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionInfo:
    """With whom we speak."""

    address: str
    leader_name: str
    term: int
    session_epoch: int
    since_unix_s: float


class View:
    """Latest readings. `session` is None while no controller is heard."""

    def __init__(
        self, node: Node, devices: DeviceProvider, weights: WeightsLike, inventory: Inventory,
        changes: Changes, clock: Clock, disk: Callable[[], tuple[int | None, int | None]],
    ) -> None:  # fmt: skip
        self.node = node
        self.changes = changes
        self.inventory = inventory
        self.weights: tuple[Held, ...] = ()
        self.session: SessionInfo | None = None
        #: Long commands of the session under way: logs that are read, benchmarks, removals.
        self.commands = 0
        self._devices, self._weights, self._clock, self._disk = devices, weights, clock, disk
        self._unheard_since = clock.monotonic_s()

    def shards(self) -> dict[ShardId, Shard]:
        """In order of id."""
        return self.node.shards()

    @property
    def devices(self) -> tuple[Device, ...]:
        """As read last."""
        return self.inventory.devices

    def set_session(self, info: SessionInfo | None) -> None:
        """From the connection."""
        if info is None and self.session is not None:
            self._unheard_since = self._clock.monotonic_s()
        self.session = info

    def silent_s(self) -> float:
        """Seconds since a controller was last heard; 0 while a session stands."""
        return 0.0 if self.session is not None else self._clock.monotonic_s() - self._unheard_since

    async def refresh(self) -> None:
        """Read devices, weights and disk once."""
        try:
            devices = await self._devices.read()
        except Unavailable as e:
            # What was seen last stands: a driver that hangs for a moment has not lost its GPUs.
            log.error("devices cannot be read: %s", e.text)
            devices = self.inventory.devices
        self.node.see_memory(devices)
        total, free = self._disk()
        inventory = replace(self.inventory, devices=devices, disk_total_bytes=total, disk_free_bytes=free)
        weights = self.node.told_of(await self._weights.held())
        if inventory != self.inventory or weights != self.weights:
            self.inventory, self.weights = inventory, weights
            self.changes.notify()

    async def keep_fresh(self, interval_s: float) -> None:
        """For ever: read, and look whether the controller has been silent for too long."""
        while True:
            await self._clock.sleep(interval_s)
            await self.refresh()
            self.node.check_silence(self.silent_s())
