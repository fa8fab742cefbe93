"""One simulated fleet: who is in it, what befalls it, and when it must be well again."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from llmgw_controller.core.catalog import Catalog
from llmgw_controller.core.routes import Endpoint, RouteTable
from llmgw_controller.core.rows import Phase, Stored, Wish
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.ids import ModelId, RouterId
from tests.simulation.agent import Agent
from tests.simulation.checks import Checks, Violation, served_models
from tests.simulation.controller import Controller
from tests.simulation.faults import Faults, Plan
from tests.simulation.growth import Growth
from tests.simulation.hardware import node_row
from tests.simulation.hunger import Hunger
from tests.simulation.models import DRAIN_TIMEOUT_S, GROWING, LINGERING, models
from tests.simulation.router import Router
from tests.simulation.rows import RowChecks
from tests.simulation.store import Redis, Store
from tests.simulation.world import World

#: After the last fault: a loss takes 300 s to be judged, the longest backoff 60 s, a start 25 s, and a
#: rollout or a drain may follow.
SETTLE_S = 700.0
#: Who waits for longer makes room whatever the budget and the idle time of the others say.
PATIENCE_S = 60.0
#: In peace many ask at once between these, and then nobody until all must be well: what came is to leave.
RUSH_S = (120.0, 320.0)
#: How long the cold models are asked for in peace.
HUNGER_S = 400.0


@dataclass
class Sim:
    seed: int
    faults: Plan = field(default_factory=Plan)
    fence: bool = True
    eviction: EvictionPolicy = EvictionPolicy.OFF
    faulty: bool = True
    #: Nobody asks for cold models.
    quiet: bool = False
    #: Many ask for the model that may grow.
    rush: bool = False

    def __post_init__(self) -> None:
        self.world = self.make_world()
        #: Kind -> faults that landed.
        self.faults_landed: Counter[str] = Counter()
        self.all_models = {one.name: one for one in models(self.world, self.eviction)}
        self.checks = Checks(
            self.world,
            idle_after_s={name: one.idle_after_s or inf for name, one in self.all_models.items()},
            drain_timeout_s=DRAIN_TIMEOUT_S,
        )
        self.agents = [
            Agent(self, node_row(f"n{number}", 3, ("ib-1" if number <= 3 else "ib-2",)))
            for number in range(1, 6)
        ]
        self.agents[4].tells_applied = False  # Of the release before.
        profiles = {one.name: one.profiles[0] for one in self.all_models.values()}
        shapes = {name: (one.nodes, one.gpus_per_node) for name, one in profiles.items()}
        self.rows = RowChecks(self.checks, self.agents, PATIENCE_S, shapes)
        self.store = self.make_store()
        self.redis = Redis(self.world)
        # Giving up for good would end a run early; the operator's second chance has its own tests.
        self.intervals = Intervals(
            max_failures=8, backoff_max_s=60.0, eviction=self.eviction, eviction_patience_s=PATIENCE_S
        )
        self.stall_share = self.faults.controller_stall / 30
        #: What the routers were last told, by whoever led.
        self.routed: dict[str, Endpoint] = {}
        self.controllers = self.make_controllers()
        self.catalog = Catalog(dict(self.all_models))
        self.routers = [Router(self, name) for name in ("r1", "r2")]
        self.rows.routers = tuple(RouterId(one.name) for one in self.routers)
        self._befalls = Faults(self, self.faults)

    def make_world(self) -> World:
        return World(self.seed)

    def make_store(self) -> Store:
        return Store(self.world, self.checks, self.rows, fence=self.fence)

    def make_controllers(self) -> list[Controller]:
        return [Controller(self, name) for name in ("ctl-a", "ctl-b")]

    def told(self, stored: Stored, old: RouteTable | None, new: RouteTable, *, learning: bool) -> None:
        """Routers are told a new table, by whoever leads."""
        shards = {
            row.endpoint_id: tuple(shard.shard_id for shard in row.shards) for row in stored.replicas.values()
        }
        for endpoint_id in new.endpoints:
            self.checks.published(endpoint_id, shards.get(endpoint_id, ()), learning=learning)
        known = old.endpoints if old is not None else self.routed
        for endpoint_id in sorted(known.keys() - new.endpoints.keys()):
            row = stored.replicas.get(known[endpoint_id].replica_id)
            wanted = row is not None and row.wish is Wish.SERVE and row.endpoint_id == endpoint_id
            self.checks.withdrawn(endpoint_id, shards.get(endpoint_id, ()), wanted=wanted)
            self.checks.closed(endpoint_id)
        for endpoint_id, endpoint in new.endpoints.items():
            (self.checks.closed if endpoint.draining else self.checks.reopened)(endpoint_id)
        self.routed = dict(new.endpoints)

    def landed(self, kind: str) -> None:
        """One more fault of this kind."""
        self.faults_landed[kind] += 1

    def gap_s(self, model: ModelId) -> float | None:
        """Between two requests of one router: a cold model is forgotten for minutes now and then, one that
        lingers most of the time, and in peace for good. None: not asked for at all."""
        if model == GROWING:
            if self.rush:
                return self.world.between(0.5, 3.0)
            return None if self.quiet else self.world.between(1.0, 30.0)
        if model in LINGERING:
            return self.world.between(90.0, 400.0) if self.faulty else None
        if not self.all_models[model].replicas:
            if self.quiet:
                return None
            if self.faulty and self.world.chance(0.2):
                return self.world.between(90.0, 400.0)
        return self.world.between(1.0, 30.0)

    def run(self, faulty_s: float, *, peace: bool = True) -> None:
        """Faults for so long; then peace and only what configuration wants, and all must be well; then the
        cold ones are asked for too, and nobody may starve. Raises Violation."""
        for one in (*self.controllers, *self.agents, *self.routers):
            one.boot()
        self.world.at(30.0, self._misfortune)
        self.world.at(60.0, self._befalls.look)
        self.world.run(faulty_s)
        if not peace:
            return
        self.faulty, self.quiet = False, True
        self.world.note("world", "faults end")
        self._befalls.end()
        self.world.run(faulty_s + RUSH_S[0])
        self.rush = True
        Growth(self).boot()
        self.world.run(faulty_s + RUSH_S[1])
        self.rush = False
        self.world.run(faulty_s + SETTLE_S)
        self._all_well()
        self.quiet = False
        self.world.note("world", "cold models are asked for again")
        hunger = Hunger(self)
        hunger.boot()
        self.world.run(faulty_s + SETTLE_S + HUNGER_S)

    def _misfortune(self) -> None:
        """Once a second, each kind by its chance."""
        if not self.faulty:
            return
        self.world.at(1.0, self._misfortune)
        self._befalls.befall()

    def flush(self) -> None:
        self.world.note("redis", "is flushed")
        self.redis.flush()
        self.checks.flushed()

    def redis_back(self) -> None:
        self.redis.up = True

    def _all_well(self) -> None:
        leaders = [one.name for one in self.controllers if one.says_it_leads]
        if len(leaders) != 1:
            raise Violation(f"leaders after the faults: {leaders}")
        wanted = {
            model.name: model.replicas
            for model in self.catalog.sorted_models()
            if model.replicas and model.name not in LINGERING
        }
        told = [key for key, one in self.routed.items() if not one.draining]
        served = served_models(
            self.checks, wanted, {one.row.node_id: told for one in self.agents if one.deaf}
        )
        if served != wanted:
            rows = [
                f"{row.replica_id} {row.phase.value} {row.reason}"
                for row in self.store.stored.replicas.values()
            ]
            raise Violation(f"desired not reached: {served} of {wanted}; rows {rows}")
        claimed = {
            shard.shard_id
            for row in self.store.stored.replicas.values()
            for shard in row.shards
            if not shard.released
        }
        dead = {one.row.node_id for one in self.agents if one.dead or one.deaf}
        orphans = [
            one.shard_id
            for one in self.checks.living()
            if one.shard_id not in claimed and one.node_id not in dead
        ]
        if orphans:
            raise Violation(f"engines nobody knows: {orphans}")
        stones = [stone for stone in self.store.stored.tombstones if stone.node_id not in dead]
        if stones:
            raise Violation(f"tombstones left: {stones}")
        ready = {
            row.endpoint_id
            for row in self.store.stored.replicas.values()
            if row.phase is Phase.READY and row.wish is Wish.SERVE and row.model in wanted
        }
        for router in self.routers:  # The cold model may be coming or going at this very moment.
            told = {key for key, one in router.table.endpoints.items() if one.model in wanted}
            if told != ready:
                raise Violation(f"{router.name} has {sorted(told)}, ready are {sorted(ready)}")


def simulate(seed: int, *, minutes: float = 20.0, fence: bool = True, faults: Plan | None = None) -> Sim:
    """One fleet from start to peace; odd seeds evict to make room. Raises Violation with what to type and the
    last events."""
    eviction = EvictionPolicy.ON if seed % 2 else EvictionPolicy.OFF
    sim = Sim(seed, faults or Plan(), fence=fence, eviction=eviction)
    try:
        sim.run(minutes * 60)
    except Exception as broken:  # Whatever ends a leader is a violation, a bug of the world one to mend.
        last = "\n".join(list(sim.world.lines)[-40:])
        raise Violation(f"{told(broken)}\n{last}\nreplay: make sim SEED={seed}") from broken
    return sim


def told(broken: Exception) -> str:
    """A checker's own words, or what else went wrong."""
    return str(broken) if isinstance(broken, AssertionError) else f"{type(broken).__name__}: {broken}"
