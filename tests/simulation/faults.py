"""What befalls a fleet: one table of kinds, each with its chance a minute and what it does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, TypeVar

from llmgw_controller.core.catalog import Catalog
from llmgw_controller.core.deployments import second_chance
from llmgw_controller.core.plan import Change, PutDeployment, PutEvent, PutNode, Severity
from llmgw_controller.core.rows import DeploymentRow, Phase, Schedulability
from llmgw_kit.ids import ModelId
from tests.simulation.twins import Twin

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.sim import Sim

T = TypeVar("T")


@dataclass
class Plan:
    """Shares of faults a minute; 0 switches one off."""

    controller_stall: float = 0.25
    controller_crash: float = 0.1
    agent_crash: float = 0.25
    reboot: float = 0.08
    cut_short: float = 0.2
    cut_long: float = 0.05
    one_way: float = 0.15
    late: float = 0.3
    engine_crash: float = 0.4
    redis_flush: float = 0.15
    redis_away: float = 0.1
    router_crash: float = 0.12
    router_deaf: float = 0.15
    edit_model: float = 0.2
    #: At most one node of a run, for good.
    node_dies: float = 0.02
    #: Likewise, and not beside it: one that beats on and does nothing.
    agent_deaf: float = 0.015
    agent_stuck: float = 0.15
    agent_twin: float = 0.1
    router_leaves: float = 0.1
    rush: float = 0.1
    postgres_pause: float = 0.15
    clock_step: float = 0.1
    device: float = 0.3
    disk_full: float = 0.1
    port_theft: float = 0.2
    remove_model: float = 0.05
    stop_model: float = 0.05
    set_aside: float = 0.15


class Faults:
    """Each kind once a second by its chance; what lands is counted by its name."""

    def __init__(self, sim: "Sim", plan: Plan) -> None:
        self.sim = sim
        self._kinds: list[tuple[float, Callable[[], object]]] = [
            (getattr(plan, name) / 60, getattr(self, f"_{name}"))
            for name in Plan.__dataclass_fields__
            if name
            != "controller_stall"  # Stalls fall between deciding and writing: `Controller` rolls them.
        ]

    def befall(self) -> None:
        for share, happen in self._kinds:
            if self.sim.world.chance(share):
                happen()

    def end(self) -> None:
        """Peace: whatever lasts is over, and operators take back what they had wished."""
        sim = self.sim
        sim.rush = False
        for agent in sim.agents:
            agent.hardware.heal()
            agent.held_until = {}
            agent.wake()
        for engine in sim.checks.living():
            # Of one whose gauge cannot be read nothing is known, so it would hold its room for ever.
            engine.habits = replace(engine.habits, gauge_unreadable=False)
        for router in sim.routers:
            router.deaf_until = 0.0
        sim.store.paused_until = 0.0
        sim.redis.up = True
        for model in sim.all_models.values():
            if model.name not in sim.catalog.models:
                self._add(model.name)
            self._start_model(model.name)
        for agent in sim.agents:
            self._uncordon(agent.row.node_id)

    # --- processes and links

    def _controller_crash(self) -> None:
        self._land("controller crash", self._pick(self.sim.controllers).crash)

    def _agent_crash(self) -> None:
        self._land("agent crash", self._pick(self.sim.agents).crash)

    def _reboot(self) -> None:
        self._land("node reboot", self._pick(self.sim.agents).reboot)

    def _cut_short(self) -> None:
        seconds = self.sim.world.between(2.0, 60.0)
        self._land("partition", lambda: self._pick(self.sim.agents).cut_off(seconds))

    def _cut_long(self) -> None:
        seconds = self.sim.world.between(250.0, 500.0)
        self._land("partition until lost", lambda: self._pick(self.sim.agents).cut_off(seconds))

    def _one_way(self) -> None:
        way = self._pick(["up", "down"])
        seconds = self.sim.world.between(10.0, 90.0)
        self._land(f"partition one way, {way}", lambda: self._pick(self.sim.agents).hold(way, seconds))

    def _late(self) -> None:
        way = self._pick(["up", "down"])
        seconds = self.sim.world.between(1.0, 9.0)
        self._land("late messages", lambda: self._pick(self.sim.agents).hold(way, seconds))

    def _node_dies(self) -> None:
        # Not one of the larger fabric: with two of three left, small replicas may lie where the gang no
        # longer fits, and nobody is evicted for it.
        if not any(one.dead or one.deaf for one in self.sim.agents):
            self._land("node gone for good", self._pick(self.sim.agents[3:]).die)

    def _agent_deaf(self) -> None:
        # An agent of the release before would be taken to have vanished, after ten seconds.
        if not any(one.dead or one.deaf for one in self.sim.agents):
            self._land("agent deaf for good", lambda: self.sim.agents[3].stick(inf))

    def _agent_stuck(self) -> None:
        seconds = self.sim.world.between(20.0, 300.0)
        self._land("agent stuck", lambda: self._pick(self._newer()).stick(seconds))

    def _agent_twin(self) -> None:
        seconds = self.sim.world.between(10.0, 60.0)
        agent = self._pick(self._newer())
        if agent.running and not agent.cut and not agent.dead:
            self._land("agent's twin", lambda: Twin(self.sim, agent, seconds))

    def _newer(self) -> "list[Agent]":
        return [one for one in self.sim.agents if one.tells_applied]

    def _engine_crash(self) -> None:
        self._land("engine crash", self._pick(self.sim.agents).crash_engine)

    def _router_crash(self) -> None:
        self._land("router crash", self._pick(self.sim.routers).crash)

    def _router_deaf(self) -> None:
        seconds = self.sim.world.between(1.0, 60.0)
        self._land("router deaf", lambda: self._pick(self.sim.routers).deafen(seconds))

    def _router_leaves(self) -> None:
        self._land("router leaves", self._pick(self.sim.routers).leave)

    def _rush(self) -> None:
        if not self.sim.rush:
            self._land("rush", lambda: setattr(self.sim, "rush", True))
            self.sim.world.at(self.sim.world.between(40.0, 200.0), self._calm)

    def _calm(self) -> None:
        if self.sim.faulty:
            self.sim.rush = False

    # --- stores and clocks

    def _redis_flush(self) -> None:
        self._land("Redis flush", self.sim.flush)

    def _redis_away(self) -> None:
        if self.sim.redis.up:
            self._land("Redis away", lambda: setattr(self.sim.redis, "up", False))
            self.sim.world.at(self.sim.world.between(5.0, 90.0), self.sim.redis_back)

    def _postgres_pause(self) -> None:
        if not self.sim.store.paused:
            seconds = self.sim.world.between(0.5, 40.0)
            self.sim.world.note("store", f"answers nobody for {seconds:.0f} s")
            self.sim.store.paused_until = self.sim.world.now + seconds
            self._land("Postgres pause", lambda: None)

    def _clock_step(self) -> None:
        self.sim.store.skew_s += self.sim.world.between(-90.0, 90.0)
        self._land("clock step", lambda: None)

    # --- nodes

    def _device(self) -> None:
        self._pick(self.sim.agents).device_fails()  # Counted by what it is.

    def _disk_full(self) -> None:
        agent, seconds = self._pick(self.sim.agents), self.sim.world.between(20.0, 200.0)
        self.sim.world.note(agent.name, f"its disk is full for {seconds:.0f} s")
        agent.hardware.disk_full_until = self.sim.world.now + seconds
        self._land("full disk", lambda: None)

    def _port_theft(self) -> None:
        agent = self._pick(self.sim.agents)
        first = self.sim.world.rng.randrange(20000, 20006)
        until = self.sim.world.now + self.sim.world.between(10.0, 120.0)
        agent.hardware.thieves.update(dict.fromkeys(range(first, first + 3), until))
        self._land("port theft", lambda: None)

    # --- operators

    def operate(self, *changes: Change) -> bool:
        """What an operator asks of the leader; refused where there is none to ask."""
        leader = next((one for one in self.sim.controllers if one.says_it_leads and not one.busy), None)
        return leader is not None and leader.write(list(changes))

    def look(self) -> None:
        """An operator looks at the status every minute: what was given up gets another chance."""
        sim = self.sim
        sim.world.at(60.0, self.look)
        for model in sim.catalog.sorted_models():
            rows = [row for row in sim.store.stored.replicas.values() if row.model == model.name]
            given_up = any(row.phase is Phase.FAILED for row in rows)
            leader = next((one for one in sim.controllers if one.says_it_leads), None)
            if leader is None:
                return
            changes, _ = second_chance(sim.store.stored, model.name, leader.clock)
            if changes and (given_up or not sim.faulty):
                self.operate(*changes)

    def _edit_model(self) -> None:
        """Another count, or another spec."""
        sim = self.sim
        kept = sim.catalog.models.get(ModelId("kept"))
        if kept is None:
            return
        if sim.world.chance(0.5):
            # With one of those that grow three may lie on two nodes of a fabric, and the gang still fits.
            kept = replace(kept, replicas=sim.world.rng.choice([1, 2]))
        else:
            fresh = replace(kept.profiles[0], context_length=sim.world.rng.randrange(1, 10))
            kept = replace(kept, profiles=(fresh,))
        sim.world.note("world", f"kept: {kept.replicas} of context {kept.profiles[0].context_length}")
        sim.catalog = Catalog({**sim.catalog.models, kept.name: kept})
        sim.all_models[kept.name] = kept
        self._land("model edited", lambda: None)

    def _remove_model(self) -> None:
        name = self._pick(sorted(self.sim.catalog.models)) if self.sim.catalog.models else None
        if name is None:
            return
        self.sim.world.note("world", f"{name} is removed")
        left = {key: one for key, one in self.sim.catalog.models.items() if key != name}
        self.sim.catalog = Catalog(left)
        self.sim.world.at(self.sim.world.between(20.0, 300.0), self._add, name)
        self._land("model removed", lambda: None)

    def _add(self, name: ModelId) -> None:
        self.sim.world.note("world", f"{name} is there again")
        self.sim.catalog = Catalog({**self.sim.catalog.models, name: self.sim.all_models[name]})

    def _stop_model(self) -> None:
        name = self._pick(sorted(self.sim.all_models))
        if self.operate(PutDeployment(DeploymentRow(name, True, None, 0.0))):
            self.sim.world.note("world", f"{name} is stopped")
            self._land("model stopped", lambda: None)
            self.sim.world.at(self.sim.world.between(20.0, 300.0), self._start_model, name)

    def _start_model(self, name: ModelId) -> None:
        row = self.sim.store.stored.deployments.get(name)
        if row is None or not row.stopped or self.operate(PutDeployment(replace(row, stopped=False))):
            return
        self.sim.world.at(1.0, self._start_model, name)

    def _set_aside(self) -> None:
        agent = self._pick(self.sim.agents)
        node = self.sim.store.stored.nodes.get(agent.row.node_id)
        how = self._pick([Schedulability.CORDONED, Schedulability.DRAINING])
        if node is not None and node.schedulability is Schedulability.SCHEDULABLE:
            event = PutEvent(0.0, how.value, node.node_id, "by operator", Severity.INFO)
            if self.operate(PutNode(replace(node, schedulability=how)), event):
                self.sim.world.note(agent.name, f"is {how.value}")
                self._land(f"node {how.value}", lambda: None)
                self.sim.world.at(self.sim.world.between(20.0, 300.0), self._uncordon, node.node_id)

    def _uncordon(self, node_id: str) -> None:
        node = next((one for one in self.sim.store.stored.nodes.values() if one.node_id == node_id), None)
        if node is None or node.schedulability is Schedulability.SCHEDULABLE:
            return
        if not self.operate(PutNode(replace(node, schedulability=Schedulability.SCHEDULABLE))):
            self.sim.world.at(1.0, self._uncordon, node_id)

    # ---

    def _land(self, kind: str, happen: Callable[[], object]) -> None:
        self.sim.landed(kind)
        happen()

    def _pick(self, among: Sequence[T]) -> T:
        return self.sim.world.rng.choice(among)
