"""A rush in times of peace: requests that wait without a break bring more replicas, where there is room,
within a bound; that they leave again is looked at when all must be well."""

from typing import TYPE_CHECKING

from tests.simulation.hunger import room_of
from tests.simulation.models import GROWING

if TYPE_CHECKING:
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
        # One that answers nothing is taken down first, and where its agent is deaf that takes its time.
        if serving != 1 or not room_of(sim, model, beside_itself=True):
            self._since = None
            return
        if self._since is None:
            self._since = sim.world.now
        waited_s = sim.world.now - self._since
        if waited_s > BOUND_S:
            sim.checks.fail(f"{GROWING} has one replica after {waited_s:.0f} s of waiting, and there is room")
