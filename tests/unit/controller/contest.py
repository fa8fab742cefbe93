"""More models than GPUs, and people who ask for them: a small world around the real decisions.

Agents take their time to load and to stop; a router sends requests where routes say, holds what it cannot
send, reports every five seconds and acknowledges drain marks when nothing of it runs there. One seed is one
story. What happened is kept apart from any row: the engines that ran, and the waits of the people.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from llmgw_controller.core.activity import Activity, ActivityMap, RouterReport
from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.desired import desired_for
from llmgw_controller.core.heard import Exit, ShardReport, ShardState
from llmgw_controller.core.plan import Plan, PutActivation, Release
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import ActivationRow, NodeRow, Stored, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, RouterId, ShardId
from tests.unit.controller.build import heard, member, report, snapshot

TICK_S = 2.0
#: Redis's clock is another one.
REDIS_AHEAD_S = 77_000.0


@dataclass
class Request:
    model: ModelId
    since: float
    #: When it is answered, once it runs.
    until: float | None = None
    replica_id: ReplicaId | None = None


@dataclass
class Contest:
    seed: int
    models: list[Model]
    nodes: list[NodeRow]
    #: model -> mean seconds between two requests.
    every_s: dict[str, float]
    intervals: object
    load_s: float = 40.0
    #: Between two reports of the router: what it picks meanwhile nobody knows yet.
    report_s: float = 5.0
    stop_s: float = 3.0
    #: Clients give up after so long, and the same person asks again soon.
    patience_s: float = 120.0
    #: Chance per tick that the router goes silent or Redis is flushed, for a while.
    faults: float = 0.0
    now: float = 10_000.0
    #: Sees each plan before it is applied, with the rows it was made on.
    look: Callable[[Stored, Plan], None] | None = None

    snap: Snapshot = field(init=False)
    rng: random.Random = field(init=False)
    requests: list[Request] = field(default_factory=list)
    #: (model, how long its demand stood unserved).
    waits: list[tuple[ModelId, float]] = field(default_factory=list)
    unserved: dict[ModelId, float] = field(default_factory=dict)
    evictions: list[tuple[float, str]] = field(default_factory=list)
    #: Engines by shard: since when it loads, and since when it is told to stop.
    engines: dict[ShardId, list[float | None]] = field(default_factory=dict)
    touched: dict[ReplicaId, float] = field(default_factory=dict)
    #: Requests that ran at an engine when it was told to stop.
    cut: int = 0
    #: Nobody can tell what is used: until then.
    blind_until: float = 0.0
    _reported: float = -1e9
    _report: RouterReport | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.snap = snapshot(
            self.models, self.nodes, (), [heard(node, at=self.now) for node in self.nodes],
            routers={"r1": member()}, intervals=self.intervals, term_started=self.now - 1000,
        )  # fmt: skip

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.tick()

    def tick(self) -> None:
        self.now += TICK_S
        self._people()
        self._agents()
        self._router()
        for _ in range(4):
            plan = reconcile(self.snap, self.now)
            self._watch(plan)
            if self.look is not None:
                self.look(self.snap.stored, plan)
            self.snap = replace(self.snap, stored=apply(self.snap.stored, plan.changes))
            if not plan.changes:
                break

    def _people(self) -> None:
        for model in self.models:
            if self.rng.random() < TICK_S / self.every_s[model.name]:
                self.requests.append(Request(model.name, self.now))
        for one in list(self.requests):
            if one.until is not None and self.now >= one.until:
                self.requests.remove(one)
                assert one.replica_id is not None
                self.touched[one.replica_id] = self.now
            elif one.until is None and self.now - one.since > self.patience_s:
                self.requests.remove(one)
                if self.rng.random() < 0.9:
                    self.requests.append(Request(one.model, self.now))

    def _router(self) -> None:
        table = routes(self.snap, self.now)
        open_to = {row.model: row for _, row in sorted(table.endpoints.items()) if not row.draining}
        held: dict[ModelId, int] = {}
        for one in self.requests:
            if one.until is not None:
                continue
            if (row := open_to.get(one.model)) is not None:
                one.until = self.now + self.rng.uniform(1, 12)
                one.replica_id = row.replica_id
                self.touched[row.replica_id] = self.now
            else:
                held[one.model] = held.get(one.model, 0) + 1
        for name in [model.name for model in self.models]:
            if name in held:
                self.unserved.setdefault(name, self.now)
            elif name in self.unserved:
                self.waits.append((name, self.now - self.unserved.pop(name)))
        rows = []
        for name in sorted(held):
            old = self.snap.stored.activations.get(name)
            rows.append(PutActivation(ActivationRow(name, old.opened_at if old else self.now, self.now)))
        in_flight: dict[ReplicaId, int] = {}
        for one in self.requests:
            if one.replica_id is not None:
                in_flight[one.replica_id] = in_flight.get(one.replica_id, 0) + 1
        clock = self.now + REDIS_AHEAD_S
        if self.faults and not self.blind and self.rng.random() < self.faults:
            self.blind_until = self.now + self.rng.uniform(20, 90)
        if self.blind:
            # Its drain marks are not told either: it is cut off, and goes on relaying.
            silent = ActivityMap(clock, None, None, {}, {})
            self.snap = replace(
                self.snap, stored=apply(self.snap.stored, rows), activity=Activity(silent), held=held,
                drained=frozenset(),
            )  # fmt: skip
            return
        if self.now - self._reported >= self.report_s:
            self._reported = self.now
            self._told = {name: at + REDIS_AHEAD_S for name, at in self.touched.items()}
            self._report = RouterReport(RouterId("r1"), "r1-life", clock, "e1", in_flight, {})
        assert self._report is not None
        watched = ActivityMap(clock, REDIS_AHEAD_S, "e1", dict(self._told), {RouterId("r1"): self._report})
        drained = frozenset(
            key for key, row in table.endpoints.items() if row.draining and not in_flight.get(row.replica_id)
        )
        self.snap = replace(
            self.snap,
            stored=apply(self.snap.stored, rows),
            activity=Activity(watched),
            held=held,
            drained=drained,
        )

    def _agents(self) -> None:
        words = dict(self.snap.heard)
        for node in self.nodes:
            reports: dict[ShardId, ShardReport] = {}
            for row, part, wish in desired_for(node.node_id, self.snap.stored, self.snap.catalog):
                engine = self.engines.setdefault(part.shard_id, [self.now, None])
                if wish is Wish.STOP and engine[1] is None:
                    engine[1] = self.now
                    self.cut += sum(one.replica_id == row.replica_id for one in self.requests)
                state = ShardState.SERVING if self.now - engine[0] >= self.load_s else ShardState.LOADING
                if engine[1] is not None:
                    state = ShardState.EXITED if self.now - engine[1] >= self.stop_s else ShardState.STOPPING
                running = sum(one.replica_id == row.replica_id for one in self.requests)
                ended = Exit(0, None, "stopped", "") if state is ShardState.EXITED else None
                reports[part.shard_id] = report(row, part, state, running=running, exit=ended)
            words[node.node_id] = replace(words[node.node_id], heard_at=self.now, shards=reports)
        self.snap = replace(self.snap, heard=words)

    def _watch(self, plan) -> None:
        """Claims are held once, whatever the plans say; and who left for whom."""
        for change in plan.changes:
            if isinstance(change, Release) and any(
                change.replica_id == one.victim_replica_id for one in self.snap.stored.leaving_for.values()
            ):
                self.evictions.append((self.now, change.replica_id))
        held: dict[tuple[NodeId, DeviceId], ReplicaId] = {}
        for row in apply(self.snap.stored, plan.changes).replicas.values():
            for part in row.shards:
                for device in part.device_ids if not part.released else ():
                    assert held.setdefault((part.node_id, device), row.replica_id) == row.replica_id

    def in_flight(self, replica_id: ReplicaId) -> int:
        """Really, whatever anybody has reported."""
        return sum(one.replica_id == replica_id for one in self.requests)

    @property
    def blind(self) -> bool:
        """No report of the router is fresh, or Redis has lost its map."""
        return self.now < self.blind_until

    def most_in_an_hour(self) -> int:
        times = [at for at, _ in self.evictions]
        return max((sum(at <= other < at + 3600 for other in times) for at in times), default=0)

    def longest_wait(self) -> float:
        open_now = [self.now - since for since in self.unserved.values()]
        return max([seconds for _, seconds in self.waits] + open_now, default=0.0)
