"""What two real controllers share in the looped simulation: the in-memory store and lease, behind a network
that takes time, pauses, and may deliver the write of a process that is frozen or dead."""

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.core.activity import Activity
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.plan import Change
from llmgw_controller.core.rows import Stored
from llmgw_controller.ports import Lease, LeaseView
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import LeaseTerm

if TYPE_CHECKING:
    from collections.abc import Collection

    from llmgw_kit.ids import ReplicaId
    from tests.simulation.bridge import Process
    from tests.simulation.sim import Sim

#: Whoever asks a store that is paused gives up after so long.
PATIENCE_S = 5.0

#: (term, decided at) of the write under way in this task.
_WRITE: ContextVar[tuple[int, float]] = ContextVar("write", default=(0, 0.0))


class SharedStore(MemoryStore):
    """The real in-memory store; every value that becomes the truth is looked at."""

    def __init__(self, lease: MemoryLease, sim: "Sim") -> None:
        self._sim = sim
        self._truth = Stored()
        super().__init__(lease)

    @property
    def _stored(self) -> Stored:
        return self._truth

    @_stored.setter
    def _stored(self, after: Stored) -> None:
        before, self._truth = self._truth, after
        term, decided_at = _WRITE.get()
        if term:
            self._sim.checks.landed(term)
            self._sim.checks.committed(before, after, decided_at)
            self._sim.rows.committed(before, after, decided_at)


class StorePort:
    """One process's way to it."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._sim = process.sim
        self._shared: SharedStore = process.sim.store.shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    async def load(self) -> Stored:
        await self._answers()
        stored = await self._shared.load()
        await self._process.gate()
        return stored

    async def commit(self, term: LeaseTerm, changes: Sequence[Change]) -> None:
        world, sim = self._sim.world, self._sim
        decided_at = world.now
        await self._answers()
        delay_s = world.between(0.002, 0.05)
        if sim.faulty and world.chance(sim.stall_share):
            stall_s = world.between(5.0, 25.0)
            sim.landed("controller frozen past its lease" if stall_s > 10.0 else "controller frozen")
            self._process.freeze(stall_s)
            if world.chance(0.5):
                delay_s = stall_s  # It lands when the process wakes; else it has landed, and nobody heard.

        async def land() -> None:
            await asyncio.sleep(delay_s)
            _WRITE.set((term, decided_at))
            await self._shared.commit(term, changes)
            for change in changes:
                world.note(self._process.name, repr(change)[:160])

        # On its way: whatever becomes of this process, it may land.
        landing = asyncio.ensure_future(land())
        landing.add_done_callback(self._landed)
        await asyncio.shield(landing)
        await self._process.gate()

    def _landed(self, landing: "asyncio.Task[None]") -> None:
        """Whoever sent it may be gone; what a checker has to say of it counts all the same."""
        if not landing.cancelled() and isinstance(error := landing.exception(), AssertionError):
            self._sim.world.breaks(error)

    async def _answers(self) -> None:
        await self._process.gate()
        await answers(self._sim)


async def answers(sim: "Sim") -> None:
    """The database answers after a moment, or not within anybody's patience."""
    await asyncio.sleep(0.001)
    if sim.store.paused:
        await asyncio.sleep(min(PATIENCE_S, sim.store.paused_until - sim.world.now + 0.001))
        if sim.store.paused:
            raise Unavailable("the store does not answer", retry_after_s=1.0)


class LeasePort:
    """One process's way to the lease. A crash releases nothing."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._lease: MemoryLease = process.sim.store.lease

    async def acquire(self, *, holder: str, address: str, ttl_s: float, above: int = 0) -> Lease | None:
        await self._asked()
        lease = await self._lease.acquire(holder=holder, address=address, ttl_s=ttl_s, above=above)
        if lease is not None:
            self._process.sim.checks.count("terms")
        return lease

    async def renew(self, lease: Lease) -> Lease | None:
        await self._asked()
        return await self._lease.renew(lease)

    async def release(self, lease: Lease) -> None:
        if self._process.running:
            await self._asked()
            await self._lease.release(lease)

    async def read(self) -> LeaseView | None:
        await self._asked()
        return await self._lease.read()

    async def _asked(self) -> None:
        await self._process.gate()
        await answers(self._process.sim)


class RedisPort:
    """The map as the other simulation has it."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    async def read(self) -> Activity:
        await self._process.gate()
        return self._process.sim.redis.read()

    async def forget(self, replica_ids: "Collection[ReplicaId]") -> None:
        for replica_id in replica_ids:
            self._process.sim.redis.touched.pop(replica_id, None)


class NoWeights:
    """Every node has what it needs."""

    async def fetch(self, model: Model) -> None:
        return None
