"""Nobody starves: in peace, who waits for a model that has room is served within a bound."""

from typing import TYPE_CHECKING

from llmgw_controller.core.catalog import Model
from llmgw_controller.core.state import EvictionPolicy
from llmgw_kit.ids import ModelId
from tests.simulation.checks import Engine
from tests.simulation.models import LINGERING

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.router import Router
    from tests.simulation.sim import Sim

LOOK_S = 5.0
#: A start takes 25 s at most, a backoff from before the peace 60 s, a drain before it 25 s.
BOUND_S = 150.0
#: More where a node beats and does nothing: a start that was tried there comes to its end first.
DEAF_S = 200.0
#: Whoever is refused comes again so soon.
AGAIN_S = 40.0
#: Nobody has used it for so long, and nobody will: it may leave for others.
UNUSED_S = 60.0


class Hunger:
    """Looks at who waits and at what is really free; knows no plan."""

    def __init__(self, sim: "Sim") -> None:
        self.sim = sim
        #: Model -> since when somebody waits and it would fit, without a break.
        self._since: dict[ModelId, float] = {}
        #: The same, where it would fit if what nobody uses left.
        self._since_with_room: dict[ModelId, float] = {}

    def boot(self) -> None:
        self.sim.world.at(LOOK_S, self._look)

    def _look(self) -> None:
        sim = self.sim
        sim.world.at(LOOK_S, self._look)
        bound_s = BOUND_S + (DEAF_S if any(agent.deaf for agent in sim.agents) else 0.0)
        for model in sim.catalog.sorted_models():
            waits = any(router.waiting.get(model.name) for router in sim.routers)
            waited_s = self._waited_s(self._since, model.name, waits and self._fits(model, evicting=False))
            if waited_s > bound_s:
                sim.checks.fail(f"{model.name} waits for {waited_s:.0f} s although it fits")
            if sim.eviction is not EvictionPolicy.ON:
                continue
            again = any(self._comes_again(router, model.name) for router in sim.routers)
            makes_room = again and self._fits(model, evicting=True)
            waited_s = self._waited_s(self._since_with_room, model.name, makes_room)
            if waited_s > bound_s + sim.intervals.eviction_patience_s:
                sim.checks.fail(f"{model.name} waits for {waited_s:.0f} s although nobody uses the room")

    def _waited_s(self, since: dict[ModelId, float], name: ModelId, hungry: bool) -> float:
        now = self.sim.world.now
        if not hungry:
            since.pop(name, None)
            return 0.0
        return now - since.setdefault(name, now)

    def _comes_again(self, router: "Router", name: ModelId) -> bool:
        missed_at = router.missed_at.get(name)
        return missed_at is not None and self.sim.world.now - missed_at < AGAIN_S

    def _fits(self, model: Model, *, evicting: bool) -> bool:
        return room_of(self.sim, model, evicting=evicting)


def room_of(sim: "Sim", model: Model, *, evicting: bool = False, beside_itself: bool = False) -> bool:
    """One of its replicas has room now, counting what it holds itself while it starts; `evicting`: and what
    nobody uses; `beside_itself`: one more than there are."""
    for profile in model.profiles:
        fitting = [
            agent
            for agent in sim.agents
            if _free(sim, agent, None if beside_itself else model, evicting=evicting) >= profile.gpus_per_node
        ]
        if profile.nodes > 1:
            fitting = [agent for agent in fitting if agent.row.fabrics]
        if len(fitting) >= profile.nodes:
            return True
    return False


def _free(sim: "Sim", agent: "Agent", model: Model | None, *, evicting: bool) -> int:
    if agent.dead or agent.deaf or agent.cut or not agent.running:
        return 0
    held = {
        device
        for engine in sim.checks.living()
        if engine.node_id == agent.row.node_id
        if model is None or not engine.replica_id.startswith(f"{model.name}/")
        if not (evicting and _unused(sim, engine))
        for device in engine.device_ids
    }
    return len(agent.row.devices) - len(held)


def _unused(sim: "Sim", engine: Engine) -> bool:
    if engine.replica_id.rpartition("/")[0] not in LINGERING or engine.serving_since is None:
        return False
    checks, now = sim.checks, sim.world.now
    used = checks.used_at.get(engine.replica_id)
    last_at = max(engine.serving_since, used[-1][0] if used else 0.0)
    return checks.busy_since(engine.endpoint_id) is None and now - last_at > UNUSED_S
