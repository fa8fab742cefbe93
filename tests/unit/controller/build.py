"""Builders for the controller's core tests: one line a thing, so that a test shows only what it is about."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llmgw_controller.core.activity import Activity, ActivityMap, RouterReport
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import (
    Catalog,
    Engine,
    Model,
    Profile,
    Source,
    Weights,
    WeightsFile,
    spec_hash,
)
from llmgw_controller.core.desired import desired_for
from llmgw_controller.core.heard import (
    DeviceReport,
    DeviceState,
    Exit,
    HeldWeights,
    NodeHeard,
    ShardReport,
    ShardState,
)
from llmgw_controller.core.plan import Plan
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.rows import (
    ActivationRow,
    Cause,
    DeviceRow,
    NodeRow,
    Phase,
    ReplicaRow,
    RouterRow,
    Schedulability,
    ShardRow,
    Stored,
    Wish,
)
from llmgw_controller.core.state import Intervals, Snapshot
from llmgw_kit.ids import (
    DeviceId,
    LeaseTerm,
    ModelId,
    NodeId,
    ReplicaId,
    RouterId,
    SessionEpoch,
    ShardId,
)

#: "Now" of a snapshot whose leader has led for long.
NOW = 10_000.0
TERM_STARTED = 1_000.0
GIB = 1024**3


def profile(name: str = "p", **changes: object) -> Profile:
    plain = Profile(
        name=name,
        engine=Engine.LLAMACPP,
        gpu_class="L4",
        nodes=1,
        gpus_per_node=1,
        tensor_parallel=1,
        pipeline_parallel=1,
        data_parallel=1,
        memory_bytes=None,
        context_length=None,
        args=(),
        env=(),
        command=(),
        extra_ports=(),
        ready_path=None,
        ready_timeout_s=600.0,
        drain_timeout_s=300.0,
        stop_grace_s=20.0,
        stop_after_silence_s=None,
        min_uptime_s=60.0,
        pool=None,
        node_ids=(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def model(name: str = "m", *profiles: Profile, **changes: object) -> Model:
    plain = Model(
        name=ModelId(name),
        aliases=(),
        weights=Weights("v1", (WeightsFile("w.gguf", "file:///w.gguf", None, None),), "w.gguf"),
        profiles=profiles or (profile(),),
        replicas=0,
        activate_on_demand=True,
        hold_timeout_s=120.0,
        max_held=100,
        idle_after_s=600.0,
        min_residency_s=60.0,
        pinned=False,
        priority=0,
        source=Source.CONFIGURATION,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def node(name: str, gpus: int = 2, **changes: object) -> NodeRow:
    gpu_class = str(changes.pop("gpu_class", "L4"))
    plain = NodeRow(
        node_id=NodeId(name),
        boot_id="boot",
        agent_instance="agent",
        version="1",
        address=f"10.0.0.{sum(name.encode()) % 250}",
        fabrics=(),
        pool=None,
        engine_ports=(20000, 20099),
        devices=tuple(
            DeviceRow(DeviceId(f"{name}:{index}"), index, gpu_class, 24 * GIB) for index in range(gpus)
        ),
        schedulability=Schedulability.SCHEDULABLE,
        session_epoch=SessionEpoch(1),
        last_heard=TERM_STARTED - 10,
        lost_at=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def device(row: DeviceRow, **changes: object) -> DeviceReport:
    plain = DeviceReport(
        device_id=row.device_id,
        index=row.index,
        gpu_class=row.gpu_class,
        vendor="declared",
        memory_total_bytes=row.memory_total_bytes,
        memory_used_bytes=0,
        foreign_used_bytes=0,
        temperature_celsius=None,
        power_watts=None,
        driver_version=None,
        state=DeviceState.HEALTHY,
        reason=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def heard(
    row: NodeRow, shards: Iterable[ShardReport] = (), at: float = NOW - 1, **changes: object
) -> NodeHeard:
    plain = NodeHeard(
        node_id=row.node_id,
        session_epoch=SessionEpoch(1),
        connected=True,
        heard_at=at,
        devices=tuple(device(one) for one in row.devices),
        shards={report.shard_id: report for report in shards},
        weights=(),
        engines=("llamacpp", "command"),
        disk_free_bytes=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def weights_of(one: Model) -> HeldWeights:
    assert one.weights is not None
    return HeldWeights(one.name, one.weights.version, 1, complete=True)


def shard(
    replica: str, node_name: str, *indexes: int, rank: int = 0, epoch: int = 1, port: int = 20000
) -> ShardRow:
    return ShardRow(
        ShardId(f"{replica}.{epoch}.{rank}"),
        NodeId(node_name),
        rank,
        tuple(DeviceId(f"{node_name}:{index}") for index in indexes),
        (("http", port),),
    )


def replica(
    one: Model, number: int = 1, phase: Phase = Phase.READY, *shards: ShardRow, **changes: object
) -> ReplicaRow:
    wish = {Phase.DRAINING: Wish.DRAIN, Phase.STOPPING: Wish.STOP, Phase.STOPPED: Wish.STOP}.get(
        phase, Wish.SERVE
    )
    plain = ReplicaRow(
        replica_id=ReplicaId(f"{one.name}/{number}"),
        model=one.name,
        profile=one.profiles[0].name,
        spec_hash=spec_hash(one, one.profiles[0]),
        cause=Cause.CONFIGURATION,
        wish=wish,
        phase=phase,
        reason=None,
        until=None,
        group_epoch=1 if shards else 0,
        failures=0,
        created_at=TERM_STARTED,
        since=NOW - 1000,
        ready_since=NOW - 1000 if phase in (Phase.READY, Phase.DRAINING) else None,
        credential=None,
        shards=shards,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def report(row: ReplicaRow, one: ShardRow, state: ShardState, **changes: object) -> ShardReport:
    plain = ShardReport(
        shard_id=one.shard_id,
        replica_id=row.replica_id,
        group_epoch=row.group_epoch,
        spec_hash=row.spec_hash,
        state=state,
        exit=Exit(1, None, "crashed", "boom") if state is ShardState.EXITED else None,
        pid=100,
        pid_start_ticks=1,
        ports=one.ports,
        device_ids=one.device_ids,
        progress=None,
        probed=state is ShardState.SERVING,
        running=0,
        running_unknown=None,
        load_s=None,
        adopted=False,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def snapshot(
    models: Sequence[Model] = (),
    nodes: Sequence[NodeRow] = (),
    replicas: Sequence[ReplicaRow] = (),
    words: Sequence[NodeHeard] | None = None,
    **changes: object,
) -> Snapshot:
    """`words` None: every node was heard a second ago, and its shards serve or do what their phase says."""
    stored = Stored(
        nodes={one.node_id: one for one in nodes},
        replicas={row.replica_id: row for row in replicas},
    )
    for name in ("tombstones", "quarantine", "activations", "routers", "loads", "idle_floor"):
        if name in changes:
            stored = replace(stored, **{name: changes.pop(name)})
    if "stored_models" in changes:
        stored = replace(stored, models=changes.pop("stored_models"))  # type: ignore[arg-type]
    if words is None:
        words = [heard(one, usual_reports(one, replicas)) for one in nodes]
    plain = Snapshot(
        term=LeaseTerm(3),
        term_started=TERM_STARTED,
        catalog=Catalog({one.name: one for one in models}),
        stored=stored,
        heard={one.node_id: one for one in words},
        activity=Activity(None, "redis_not_configured"),
        drained=frozenset(),
        held={},
        intervals=Intervals(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


_USUAL = {
    Phase.STARTING: ShardState.LOADING,
    Phase.READY: ShardState.SERVING,
    Phase.DRAINING: ShardState.DRAINING,
    Phase.STOPPING: ShardState.STOPPING,
    Phase.BACKOFF: ShardState.STOPPING,
    Phase.FAILED: ShardState.STOPPING,
}


def usual_reports(one: NodeRow, replicas: Sequence[ReplicaRow]) -> list[ShardReport]:
    return [
        report(row, part, _USUAL[row.phase])
        for row in replicas
        for part in row.shards
        if part.node_id == one.node_id and not part.released and row.phase in _USUAL
    ]


def activity(*routers: RouterReport, touched: dict[str, float] | None = None, **changes: object) -> Activity:
    """A healthy map, watched for a day, read now; Redis's clock is far from the term clock on purpose."""
    plain = ActivityMap(
        now=500_000.0,
        watching_since=500_000.0 - 86_400,
        epoch="e1",
        touched={ReplicaId(name): 500_000.0 - ago for name, ago in (touched or {}).items()},
        routers={one.router_id: one for one in routers},
    )
    return Activity(replace(plain, **changes))  # type: ignore[arg-type]


def router(name: str = "r1", age_s: float = 2.0, epoch: str = "e1", **in_flight: int) -> RouterReport:
    flights = {ReplicaId(key.replace("__", "/")): count for key, count in in_flight.items()}
    return RouterReport(RouterId(name), f"{name}-life", 500_000.0 - age_s, epoch, flights, {})


def member(name: str = "r1", **changes: object) -> RouterRow:
    return replace(RouterRow(RouterId(name), f"{name}-life", TERM_STARTED), **changes)  # type: ignore[arg-type]


def ask(one: Model, opened: float = NOW - 1, asked: float = NOW - 1) -> dict[ModelId, ActivationRow]:
    return {one.name: ActivationRow(one.name, opened, asked)}


def after(snap: Snapshot, plan: Plan) -> Snapshot:
    return replace(snap, stored=apply(snap.stored, plan.changes))


class Stage:
    """A snapshot that is reconciled again and again, with agents that do as they are told at once."""

    def __init__(self, snap: Snapshot, now: float = NOW) -> None:
        self.snap = snap
        self.now = now
        self.plans: list[Plan] = []

    @property
    def rows(self) -> dict[str, ReplicaRow]:
        return {str(key): row for key, row in self.snap.stored.replicas.items()}

    def step(self, seconds: float = 2.0) -> Plan:
        """One pass, and the proof that a second one at the same moment would change nothing."""
        plan = reconcile(self.snap, self.now)
        self.snap = after(self.snap, plan)
        again = reconcile(self.snap, self.now)
        assert again.changes == (), f"not at rest: {again.changes}"
        self.plans.append(plan)
        self.now += seconds
        self._beat()
        return plan

    def jump(self, to: float) -> None:
        """Time passes, agents beat on, nobody reconciles."""
        self.now = to
        self._beat()

    def obey(self, serving: ShardState = ShardState.SERVING) -> None:
        """Every agent runs what it is to run and reports `serving`; ended shards are told as EXITED."""
        for node_id, word in list(self.snap.heard.items()):
            reports: dict[ShardId, ShardReport] = {}
            for row, part, wish in desired_for(node_id, self.snap.stored, self.snap.catalog):
                old = word.shards.get(part.shard_id)
                if old is not None and old.state is ShardState.EXITED:
                    reports[part.shard_id] = old
                elif wish is Wish.STOP:
                    ended = report(row, part, ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
                    reports[part.shard_id] = ended
                elif wish is Wish.DRAIN:
                    reports[part.shard_id] = report(row, part, ShardState.DRAINING)
                else:
                    reports[part.shard_id] = report(row, part, serving)
            self.say(node_id, shards=reports)

    def say(self, node_id: str, **changes: object) -> None:
        word = replace(self.snap.heard[NodeId(node_id)], heard_at=self.now, **changes)  # type: ignore[arg-type]
        self.snap = replace(self.snap, heard={**self.snap.heard, NodeId(node_id): word})

    def tell(self, row: ReplicaRow, state: ShardState, **changes: object) -> None:
        """Another word of the agents on every shard of the replica."""
        for part in row.shards:
            shards = dict(self.snap.heard[part.node_id].shards)
            shards[part.shard_id] = report(row, part, state, **changes)
            self.say(part.node_id, shards=shards)

    def catalog(self, *models: Model) -> None:
        self.snap = replace(self.snap, catalog=Catalog({one.name: one for one in models}))

    def silence(self, node_id: str) -> None:
        self._silent = {*getattr(self, "_silent", set()), node_id}

    def _beat(self) -> None:
        silent: set[str] = getattr(self, "_silent", set())
        beats = {
            key: word if key in silent else replace(word, heard_at=self.now)
            for key, word in self.snap.heard.items()
        }
        self.snap = replace(self.snap, heard=beats)
