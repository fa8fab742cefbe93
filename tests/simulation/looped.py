"""The same fleet, the same faults, the same checkers, around two real controllers on a virtual clock."""

import asyncio
from typing import Any

from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.core.catalog import Catalog
from llmgw_controller.core.plan import Change, DropModel, PutModel
from llmgw_controller.core.rows import Stored
from llmgw_controller.core.state import EvictionPolicy
from llmgw_kit.ids import ModelId
from tests.simulation import wire
from tests.simulation.bridge import ACTIVITY_TICK_S, Process
from tests.simulation.checks import Violation
from tests.simulation.faults import Plan
from tests.simulation.shared import SharedStore
from tests.simulation.sim import Sim, told
from tests.simulation.virtual import GatedClock, LoopWorld, VirtualLoop

#: The term clock starts here, far from zero.
EPOCH_S = 1_000_000.0


class LoopStore:
    """What the rest of the simulation wants to know of the store."""

    def __init__(self, sim: "LoopSim") -> None:
        self._sim = sim
        self.paused_until = 0.0
        self.skew_s = 0.0

        async def open_gate() -> None: ...

        clock = GatedClock(sim.world.loop, open_gate, lambda: EPOCH_S + self.skew_s)
        self.lease = MemoryLease(clock)
        self.shared = SharedStore(self.lease, sim)

    @property
    def paused(self) -> bool:
        return self._sim.world.now < self.paused_until

    @property
    def stored(self) -> Stored:
        return self.shared._stored


class LoopSim(Sim):
    """`world`, `store` and `controllers` are others; what befalls them is not."""

    world: LoopWorld  # type: ignore[assignment]
    store: LoopStore  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.checks.read_s = ACTIVITY_TICK_S

    def make_world(self) -> LoopWorld:
        return LoopWorld(self.seed, VirtualLoop())

    def make_store(self) -> Any:
        return LoopStore(self)

    def make_controllers(self) -> list[Any]:
        return [Process(self, name) for name in ("ctl-a", "ctl-b")]

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    @catalog.setter
    def catalog(self, wanted: Catalog) -> None:
        """Operators apply and remove models; each wish is repeated until a leader has written it."""
        before = self.__dict__.get("_catalog", Catalog({}))
        self._catalog = wanted
        for name in sorted({*before.models, *wanted.models}):
            if before.models.get(name) != wanted.models.get(name):
                self._wish(name)

    def _wish(self, name: ModelId) -> None:
        model = self._catalog.models.get(name)
        change: Change = DropModel(name) if model is None else PutModel(name, wire.model_json(model), 0.0)
        self.insist(change)

    def insist(self, *changes: Change) -> None:
        """Until it has landed."""
        leader = next((one for one in self.controllers if one.says_it_leads), None)

        def done(landed: bool) -> None:
            if not landed:
                self.world.at(1.0, self.insist, *changes)

        if leader is None or not leader.write(list(changes), done):
            done(False)

    def run(self, faulty_s: float, *, peace: bool = True) -> None:
        asyncio.set_event_loop(self.world.loop)
        try:
            super().run(faulty_s, peace=peace)
        finally:
            self._close()

    def _close(self) -> None:
        loop = self.world.loop
        loop.set_exception_handler(lambda *_: None)
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=60.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def simulate_loops(
    seed: int, *, minutes: float = 20.0, faults: Plan | None = None, peace: bool = True
) -> LoopSim:
    """As `simulate`, with the real loops; without peace only what must always hold is looked at."""
    eviction = EvictionPolicy.ON if seed % 2 else EvictionPolicy.OFF
    sim = LoopSim(seed, faults or Plan(), eviction=eviction)
    try:
        sim.run(minutes * 60, peace=peace)
    except Exception as broken:  # Whatever ends a leader is a violation, a bug of the world one to mend.
        last = "\n".join(list(sim.world.lines)[-40:])
        raise Violation(f"{told(broken)}\n{last}\nreplay: make sim LOOPS={seed}") from broken
    return sim
