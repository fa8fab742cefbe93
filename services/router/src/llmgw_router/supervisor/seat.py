"""A worker's place in the pool, whoever sits there."""

import asyncio
import socket
from dataclasses import dataclass, field

from llmgw_router.relay.slots import COUNTER, Slots
from llmgw_router.supervisor.link import WorkerProcess

_SWEPT = COUNTER["swept_at_ns"]
_LAG = COUNTER["lag_last_us"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as the admin pages show it."""

    worker: int
    #: None: no process at this moment.
    pid: int | None
    serving: bool
    applied_seq: int | None
    deaths: int
    #: Of these, ended because their loop stood still.
    hangs: int
    #: How late its last sweep was; None: it has made none.
    lag_s: float | None


@dataclass(eq=False)
class Seat:
    """Owned by the pool; `process` changes with every death."""

    worker: int
    process: WorkerProcess | None = None
    listeners: list[socket.socket] = field(default_factory=list)
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    deaths: int = 0
    recent_deaths: int = 0
    hangs: int = 0
    spawned_at: float = 0.0
    respawn: asyncio.Task[None] | None = None

    def swept_at_ns(self, slots: Slots) -> int:
        """CLOCK_MONOTONIC of its last sweep; 0: none yet."""
        return slots.counters_of(self.worker)[_SWEPT]

    def view(self, slots: Slots, applied_seq: int | None) -> WorkerView:
        return WorkerView(
            self.worker,
            self.process.pid if self.process else None,
            self.serving.is_set(),
            applied_seq,
            self.deaths,
            self.hangs,
            slots.counters_of(self.worker)[_LAG] / 1e6 if self.swept_at_ns(slots) else None,
        )
