"""Nobody starves: in peace, who waits for a model that has room is served within a bound."""

from typing import TYPE_CHECKING

from llmgw_controller.core.catalog import Model
from llmgw_kit.ids import ModelId

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.sim import Sim

LOOK_S = 5.0
#: A start takes 25 s at most, a backoff from before the peace 60 s, a drain before it 25 s.
BOUND_S = 150.0


class Hunger:
    """Looks at who waits and at what is really free; knows no plan."""

    def __init__(self, sim: "Sim") -> None:
        self.sim = sim
        #: Model -> since when somebody waits and it would fit, without a break.
        self._since: dict[ModelId, float] = {}

    def boot(self) -> None:
        self.sim.world.at(LOOK_S, self._look)

    def _look(self) -> None:
        sim = self.sim
        sim.world.at(LOOK_S, self._look)
        for model in sim.catalog.sorted_models():
            waits = any(router.waiting.get(model.name) for router in sim.routers)
            if not waits or not self._fits(model):
                self._since.pop(model.name, None)
                continue
            since = self._since.setdefault(model.name, sim.world.now)
            if sim.world.now - since > BOUND_S:
                sim.checks.fail(f"{model.name} waits for {sim.world.now - since:.0f} s although it fits")

    def _fits(self, model: Model) -> bool:
        """One of its replicas has room now, counting what it holds itself while it starts."""
        for profile in model.profiles:
            fitting = [
                agent for agent in self.sim.agents if self._free(agent, model) >= profile.gpus_per_node
            ]
            if profile.nodes > 1:
                fitting = [agent for agent in fitting if agent.row.fabrics]
            if len(fitting) >= profile.nodes:
                return True
        return False

    def _free(self, agent: "Agent", model: Model) -> int:
        if agent.dead or agent.cut or not agent.running:
            return 0
        held = {
            device
            for engine in self.sim.checks.living()
            if engine.node_id == agent.row.node_id and not engine.replica_id.startswith(f"{model.name}/")
            for device in engine.device_ids
        }
        return len(agent.row.devices) - len(held)
