"""One simulated fleet: who is in it, what befalls it, and when it must be well again."""

from dataclasses import dataclass, field, replace

from llmgw_controller.core.catalog import Catalog, Engine, Model, Profile, Source
from llmgw_controller.core.routes import Endpoint
from llmgw_controller.core.state import Intervals, Phase, Wish
from llmgw_kit.ids import ModelId
from tests.simulation.agent import Agent, node_row
from tests.simulation.checks import Checks, Violation, served_models
from tests.simulation.controller import Controller
from tests.simulation.router import Router
from tests.simulation.store import Redis, Store
from tests.simulation.world import World

#: After the last fault: a loss takes 300 s to be judged, the longest backoff 60 s, a start 25 s, and a
#: rollout or a drain may follow.
SETTLE_S = 700.0
IDLE_AFTER_S = 60.0


@dataclass
class Plan:
    """Shares of faults per minute; 0 switches one off."""

    controller_stall: float = 0.25
    controller_crash: float = 0.1
    agent_crash: float = 0.25
    reboot: float = 0.08
    cut_short: float = 0.2
    cut_long: float = 0.05
    engine_crash: float = 0.4
    redis_flush: float = 0.15
    redis_away: float = 0.1
    router_crash: float = 0.12
    edit_model: float = 0.2
    #: At most one node of a run, for good.
    node_dies: float = 0.02


@dataclass
class Sim:
    seed: int
    faults: Plan = field(default_factory=Plan)
    fence: bool = True
    faulty: bool = True

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.checks = Checks(self.world, idle_after_s=IDLE_AFTER_S)
        self.store = Store(self.world, self.checks, fence=self.fence)
        self.redis = Redis(self.world)
        self.intervals = Intervals(max_failures=1000, backoff_max_s=60.0)
        self.stall_share = self.faults.controller_stall / 30
        #: What the routers were last told, by whoever led.
        self.routed: dict[str, Endpoint] = {}
        self.catalog = Catalog(
            {one.name: one for one in (_model("kept", 2), _model("gang", 1, nodes=2), _model("cold", 0))}
        )
        self.controllers = [Controller(self, name) for name in ("ctl-a", "ctl-b")]
        self.agents = [
            Agent(self, node_row(f"n{number}", 3, ("ib",) if number <= 3 else ())) for number in range(1, 6)
        ]
        self.routers = [Router(self, name) for name in ("r1", "r2")]

    def gap_s(self, model: ModelId) -> float:
        """Between two requests of one router: the cold model is forgotten for minutes now and then."""
        if model == "cold" and self.world.chance(0.2):
            return self.world.between(90.0, 400.0)
        return self.world.between(1.0, 30.0)

    def run(self, faulty_s: float) -> None:
        """Faults for so long, then peace, then all must be well. Raises Violation."""
        for one in (*self.controllers, *self.agents, *self.routers):
            one.boot()
        self.world.at(30.0, self._misfortune)
        self.world.run(faulty_s)
        self.faulty = False
        self.world.note("world", "faults end")
        self.world.run(faulty_s + SETTLE_S)
        self._all_well()

    def _misfortune(self) -> None:
        """Once a second, each kind by its chance."""
        if not self.faulty:
            return
        world = self.world
        world.at(1.0, self._misfortune)
        pick = world.rng.choice
        rolls = self.faults
        if world.chance(rolls.controller_crash / 60):
            pick(self.controllers).crash()
        if world.chance(rolls.agent_crash / 60):
            pick(self.agents).crash()
        if world.chance(rolls.reboot / 60):
            pick(self.agents).reboot()
        if world.chance(rolls.cut_short / 60):
            pick(self.agents).cut_off(world.between(2.0, 60.0))
        if world.chance(rolls.cut_long / 60):
            pick(self.agents).cut_off(world.between(250.0, 500.0))
        if world.chance(rolls.engine_crash / 60):
            pick(self.agents).crash_engine()
        if world.chance(rolls.redis_flush / 60):
            world.note("redis", "is flushed")
            self.redis.flush()
        if world.chance(rolls.redis_away / 60) and self.redis.up:
            self.redis.up = False
            world.at(world.between(5.0, 90.0), self._redis_back)
        if world.chance(rolls.router_crash / 60):
            pick(self.routers).crash()
        if world.chance(rolls.edit_model / 60):
            self._edit()
        if world.chance(rolls.node_dies / 60) and not any(one.dead for one in self.agents):
            # Not one of the fabric: with two of three left, small replicas may lie where the gang no longer
            # fits, and nobody is evicted for it.
            pick(self.agents[3:]).die()

    def _redis_back(self) -> None:
        self.redis.up = True

    def _edit(self) -> None:
        """An operator changes a model: another count, or another spec."""
        kept = self.catalog.models[ModelId("kept")]
        if self.world.chance(0.5):
            kept = replace(kept, replicas=self.world.rng.choice([1, 2, 3]))
        else:
            fresh = replace(kept.profiles[0], context_length=self.world.rng.randrange(1, 10))
            kept = replace(kept, profiles=(fresh,))
        self.world.note("world", f"kept: {kept.replicas} of context {kept.profiles[0].context_length}")
        self.catalog = Catalog({**self.catalog.models, kept.name: kept})

    def _all_well(self) -> None:
        leaders = [one.name for one in self.controllers if one.says_it_leads]
        if len(leaders) != 1:
            raise Violation(f"leaders after the faults: {leaders}")
        wanted = {model.name: model.replicas for model in self.catalog.sorted_models() if model.replicas}
        served = served_models(self.checks, wanted)
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
        dead = {one.row.node_id for one in self.agents if one.dead}
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
    """One fleet from start to peace. Raises Violation with what to type and the last events."""
    sim = Sim(seed, faults or Plan(), fence=fence)
    try:
        sim.run(minutes * 60)
    except AssertionError as broken:
        last = "\n".join(list(sim.world.lines)[-40:])
        raise Violation(f"{broken}\n{last}\nreplay: make sim SEED={seed}") from broken
    return sim


def _model(name: str, replicas: int, *, nodes: int = 1) -> Model:
    profile = Profile(
        name="p",
        engine=Engine.LLAMACPP,
        gpu_class="L4",
        nodes=nodes,
        gpus_per_node=2 if nodes > 1 else 1,
        tensor_parallel=2 * nodes if nodes > 1 else 1,
        pipeline_parallel=1,
        data_parallel=1,
        memory_bytes=None,
        context_length=None,
        args=(),
        env=(),
        command=(),
        extra_ports=("rendezvous",) if nodes > 1 else (),
        ready_path=None,
        ready_timeout_s=600.0,
        drain_timeout_s=120.0,
        stop_grace_s=20.0,
        stop_after_silence_s=None,
        min_uptime_s=60.0,
        pool=None,
        node_ids=(),
    )
    return Model(
        name=ModelId(name),
        aliases=(),
        weights=None,
        profiles=(profile,),
        replicas=replicas,
        activate_on_demand=True,
        hold_timeout_s=120.0,
        max_held=100,
        idle_after_s=IDLE_AFTER_S,
        min_residency_s=30.0,
        pinned=False,
        priority=0,
        source=Source.CONFIGURATION,
    )
