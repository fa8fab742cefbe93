"""A rush in times of peace: requests that wait without a break bring more replicas, where there is room,
within a bound; that they leave again is looked at when all must be well."""

from typing import TYPE_CHECKING

from tests.simulation.hunger import DEAF_S, room_of
from tests.simulation.models import GROWING

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.sim import Sim

LOOK_S = 5.0
#: A need of 30 s, a tick of the map, a pass or two, and a start of 25 s at most.
BOUND_S = 120.0


class Growth:
    """Looks at engines and at free devices; knows no plan."""

    def __init__(self, sim: "Sim") -> None:
        self.sim = sim
        #: Since when there was room for one more, and fewer than there may be, without a break.
        self._since: float | None = None

    def boot(self) -> None:
        self.sim.world.at(LOOK_S, self._look)

    def _look(self) -> None:
        sim = self.sim
        if not sim.rush:
            return
        sim.world.at(LOOK_S, self._look)
        model = sim.catalog.models[GROWING]
        serving = sum(
            one.serving_since is not None and not one.hangs(sim.world.now)
            for one in sim.checks.living()
            if one.replica_id.startswith(f"{GROWING}/")
        )
        assert model.max_replicas is not None
        # One that answers nothing is taken down first, and where its agent is deaf that takes its time. Those
        # of a node out of reach count until it is given up: they may still serve.
        if any(self._counts_on(agent) for agent in sim.agents):
            self._since = None
            return
        if serving != 1 or not room_of(sim, model, beside_itself=True):
            self._since = None
            return
        if self._since is None:
            self._since = sim.world.now
        waited_s = sim.world.now - self._since
        if waited_s > BOUND_S + (DEAF_S if any(agent.deaf for agent in sim.agents) else 0.0):
            sim.checks.fail(f"{GROWING} has one replica after {waited_s:.0f} s of waiting, and there is room")

    def _counts_on(self, agent: "Agent") -> bool:
        """It is away, not for so long yet that it is given up, and was told to run one of these."""
        away = self.sim.checks.away.get(agent.row.node_id)
        if away is None or away[1] is not None:
            return False
        # As long again as a look and a pass take.
        given_up = self.sim.world.now - away[0] > self.sim.checks.lost_after_s + 2 * LOOK_S
        return not given_up and any(
            held.row.replica_id.startswith(f"{GROWING}/") for held in agent.journal.values()
        )
