"""A whole leader in the test's hand: its real office, reign, passes and servicers on a clock that the test
moves, with agents, routers and the routers' map around it. No network, no waiting."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from llmgw.v1 import agent_pb2, routing_pb2
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.adapters.store_memory import MemoryStore
from llmgw_controller.catalog_file import parse_models
from llmgw_controller.core.activity import Activity, ActivityMap, RouterReport
from llmgw_controller.core.lease import LeaseTiming
from llmgw_controller.core.rows import ReplicaRow
from llmgw_controller.core.state import Intervals
from llmgw_controller.fleet import Session
from llmgw_controller.leadership import Tenure
from llmgw_controller.office import Office
from llmgw_controller.ports import Store
from llmgw_controller.reign import Reign, Rules, World
from llmgw_controller.servicer_operator import OperatorServicer
from llmgw_controller.servicer_routing import RoutingServicer
from llmgw_kit.ids import ReplicaId, RouterId
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock

from .reigns import Mirror, Outcomes, hello

#: One step of the test's clock, and turns of the loop after it: a pass is a long chain of futures.
STEP_S = 0.5
TURNS = 200
#: Redis's clock is far from everybody's.
SKEW_S = 777_000.0


class _Inline(ThreadPoolExecutor):
    """Decides at once what a leader decides in a thread: no test depends on how busy the machine is."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as e:
            future.set_exception(e)
        return future


@dataclass
class Map:
    """ActivityReader: what Redis would hold, were these routers' reports in it."""

    clock: FakeClock
    epoch: str = "e1"
    watching_since: float | None = None
    touched: dict[str, float] = field(default_factory=dict)
    routers: dict[str, Router] = field(default_factory=dict)
    #: Last reports of routers that report no more.
    stale: dict[str, RouterReport] = field(default_factory=dict)
    away: bool = False

    @property
    def now(self) -> float:
        return self.clock.monotonic_s() + SKEW_S

    def __post_init__(self) -> None:
        self.watching_since = self.now

    async def read(self) -> Activity:
        """As in the port."""
        if self.away:
            return Activity(None, "redis_unreachable")
        for router in self.routers.values():
            if not router.silent:
                self.stale[router.router_id] = router.report(self)
        reports = {RouterId(name): one for name, one in self.stale.items()}
        touched = {ReplicaId(name): at for name, at in self.touched.items()}
        return Activity(ActivityMap(self.now, self.watching_since, self.epoch, touched, reports), "")

    async def forget(self, replica_ids: Collection[ReplicaId]) -> None:
        """As in the port."""
        for name in replica_ids:
            self.touched.pop(name, None)


class Seat:
    """A controller that leads, from `begin` to `end`."""

    def __init__(
        self, clock: FakeClock, *models: object, store: Store | None = None, lease: MemoryLease | None = None,
        intervals: Intervals | None = None,
    ) -> None:  # fmt: skip
        self.clock = clock
        self.lease = lease or MemoryLease(clock)
        self.store = store or MemoryStore(self.lease)
        self.map = Map(clock)
        self.intervals = intervals or Intervals()
        self._models = parse_models(list(models), where="test")
        self.office = Office(
            self.lease, clock, name="c", address="c:1", timing=LeaseTiming(ttl_s=3600.0), make=self._make
        )
        self.routing = RoutingServicer(self.office)
        self.operator = OperatorServicer(self.office, store_kind="memory", config_hash="h")
        self._tasks: list[asyncio.Task[Any]] = []

    def _make(self, tenure: Tenure) -> Reign:
        world = World(self.store, self.map, Mirror(), self.clock, Outcomes(), lambda: ())
        rules = Rules(
            cluster="test", configured=self._models, intervals=self.intervals, reconcile_interval_s=2.0,
            activity_tick_s=5.0, beat_interval_s=5.0, events_keep_s=86_400.0, mirror_urls=("http://m:1",),
        )  # fmt: skip
        return Reign(tenure, world, rules, name="c")

    @property
    def reign(self) -> Reign:
        return self.office.require()

    @property
    def rows(self) -> dict[str, ReplicaRow]:
        return {str(key): row for key, row in self.reign.ledger.stored.replicas.items()}

    async def begin(self) -> Seat:
        """Lead."""
        asyncio.get_running_loop().set_default_executor(_Inline())
        self.task(self.office.leadership.run(), "leadership")
        await self.until("it leads", lambda: self.office.reign is not None and self.reign.ledger.known)
        return self

    def task(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        await cancel_all(*self._tasks)
        self._tasks.clear()

    async def passes(self, seconds: float) -> None:
        """Time goes by."""
        for _ in range(round(seconds / STEP_S)):
            await self._step()

    async def until(self, what: str, true: Any, most_s: float = 300.0) -> float:
        """Time goes by until it is so; how long that took. AssertionError when it does not come about."""
        began = self.clock.monotonic_s()
        while not true():
            assert self.clock.monotonic_s() - began < most_s, f"{what}: not in {most_s:.0f} s"
            await self._step()
        return self.clock.monotonic_s() - began

    async def _step(self) -> None:
        await self.clock.advance(STEP_S)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def told(self, subject: str | None = None) -> list[str]:
        """Kinds of events, oldest first."""
        rows = await self.store.events(since=None, subject=subject, limit=1000)
        return [row.kind for row in reversed(rows)]


@dataclass(eq=False)
class Agent:
    """One node: runs what its Desired says, and says what it runs."""

    seat: Seat
    node_id: str = "n1"
    load_s: float = 4.0
    #: What its engines' gauges say; None: they have none.
    running: int | None = 0
    shards: dict[str, agent_pb2.ObservedShard] = field(default_factory=dict)
    starts: list[str] = field(default_factory=list)
    #: Added to each shard that serves.
    measured: dict[str, Any] = field(default_factory=dict)
    weights: list[agent_pb2.HeldWeights] = field(default_factory=list)
    #: Engines end when told to stop.
    ends: bool = True
    _session: Session | None = None

    async def begin(self) -> Agent:
        self.seat.task(self._run(), f"agent {self.node_id}")
        return self

    async def _run(self) -> None:
        said = hello(self.node_id, shards=list(self.shards.values()), weights=self.weights)
        self._session = await self.seat.reign.fleet.open(said)
        self.seat.task(self._beat(), f"beats of {self.node_id}")
        async for message in self._session.outbox.messages():
            if message.WhichOneof("body") == "desired":
                await self._obey(message.desired)

    async def _beat(self) -> None:
        for number in itertools.count(1):
            await self.say(beat=agent_pb2.Beat(sequence=number))
            for shard in self.shards.values():
                if shard.state == agent_pb2.SHARD_STATE_SERVING and self.running is not None:
                    shard.running_requests = self.running
                    await self._tell(shard)
            await self.seat.clock.sleep(5.0)

    async def say(self, **body: Any) -> None:
        assert self._session is not None
        message = agent_pb2.ConnectRequest(session_epoch=self._session.epoch, **body)
        await self.seat.reign.fleet.hear(self._session, message)

    async def _tell(self, shard: agent_pb2.ObservedShard) -> None:
        await self.say(shard_status=agent_pb2.ShardStatus(shards=[shard]))

    async def _obey(self, desired: agent_pb2.Desired) -> None:
        wanted = {one.spec.shard_id: one for one in desired.shards}
        for shard_id, one in wanted.items():
            held = self.shards.get(shard_id)
            if held is None and one.wish == agent_pb2.SHARD_WISH_RUN:
                self.starts.append(shard_id)
                self.seat.task(self._start(one.spec), f"start {shard_id}")
            elif one.wish == agent_pb2.SHARD_WISH_STOP:
                ended = held or self._shard(one.spec)
                if not self.ends:
                    ended.state = agent_pb2.SHARD_STATE_STOPPING
                    await self._tell(ended)
                    continue
                ended.state = agent_pb2.SHARD_STATE_EXITED
                ended.exit.reason = "stopped"
                self.shards.pop(shard_id, None)
                await self._tell(ended)
            elif one.wish == agent_pb2.SHARD_WISH_DRAIN and held is not None:
                held.state = agent_pb2.SHARD_STATE_DRAINING
                await self._tell(held)

    async def _start(self, spec: agent_pb2.ShardSpec) -> None:
        shard = self.shards[spec.shard_id] = self._shard(spec)
        await self._tell(shard)
        await self.seat.clock.sleep(self.load_s)
        if spec.shard_id not in self.shards:
            return
        shard.state, shard.probed, shard.load_s = agent_pb2.SHARD_STATE_SERVING, True, self.load_s
        if self.running is not None:
            shard.running_requests = self.running
        for name, value in self.measured.items():
            setattr(shard, name, value)
        await self._tell(shard)

    def _shard(self, spec: agent_pb2.ShardSpec) -> agent_pb2.ObservedShard:
        return agent_pb2.ObservedShard(
            shard_id=spec.shard_id, replica_id=spec.replica_id, group_epoch=spec.group_epoch,
            spec_hash=spec.spec_hash, state=agent_pb2.SHARD_STATE_LOADING, pid=7, pid_start_ticks=1,
            ports=dict(spec.ports), device_ids=list(spec.device_ids),
        )  # fmt: skip


@dataclass(eq=False)
class Router:
    """Watches, acknowledges, asks; carries what the test says."""

    seat: Seat
    router_id: str = "r1"
    incarnation: str = "life-1"
    #: Replica -> requests that run there from here.
    in_flight: dict[str, int] = field(default_factory=dict)
    #: Model -> requests that wait here.
    held: dict[str, int] = field(default_factory=dict)
    #: Sends no reports; acknowledges nothing.
    silent: bool = False
    deaf: bool = False
    endpoints: dict[str, routing_pb2.Endpoint] = field(default_factory=dict)
    models: dict[str, routing_pb2.CatalogModel] = field(default_factory=dict)
    drains: list[str] = field(default_factory=list)
    version: int = 0
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    _acks: asyncio.Queue[routing_pb2.AcknowledgeRequest] = field(default_factory=asyncio.Queue)

    async def begin(self) -> Router:
        """Join."""
        self.seat.map.routers[self.router_id] = self
        self._tasks = [
            self.seat.task(self._watch(), f"routes of {self.router_id}"),
            self.seat.task(self._acknowledge(), f"words of {self.router_id}"),
        ]
        await self.seat.until(f"{self.router_id} watches", lambda: self.version > 0)
        return self

    async def vanish(self) -> None:
        """Die without a word."""
        self.silent = True
        await cancel_all(*self._tasks)
        for task in self._tasks:
            self.seat._tasks.remove(task)

    async def goodbye(self, *, activity_lost: bool = False) -> None:
        """Stop on purpose."""
        await self.vanish()
        said = routing_pb2.GoodbyeRequest(
            router_id=self.router_id, incarnation=self.incarnation, activity_lost=activity_lost
        )
        await self.seat.routing.Goodbye(said, None)  # type: ignore[arg-type]
        self.seat.map.routers.pop(self.router_id)
        self.seat.map.stale.pop(self.router_id, None)

    def routable(self) -> list[routing_pb2.Endpoint]:
        return [row for _, row in sorted(self.endpoints.items()) if not row.draining]

    def report(self, there: Map) -> RouterReport:
        """One tick: what is in use is touched now."""
        for name, count in self.in_flight.items():
            if count:
                there.touched[name] = there.now
        flights = dict.fromkeys((row.replica_id for row in self.endpoints.values()), 0) | self.in_flight
        return RouterReport(
            RouterId(self.router_id), self.incarnation, there.now, there.epoch,
            {ReplicaId(name): count for name, count in flights.items()}, dict(self.held),
        )  # fmt: skip

    async def ask(self, model: str, waiting: int = 1) -> list[routing_pb2.ActivateResponse]:
        """Activate until it is ready or refused; the request then runs for a moment."""
        request = routing_pb2.ActivateRequest(router_id=self.router_id, model=model, waiting=waiting)
        self.held[model] = waiting
        answers = [one async for one in self.seat.routing.Activate(request, None)]  # type: ignore[arg-type]
        self.held.pop(model, None)
        return answers

    async def _watch(self) -> None:
        request = routing_pb2.WatchRoutesRequest(router_id=self.router_id, incarnation=self.incarnation)
        async for message in self.seat.routing.WatchRoutes(request, None):  # type: ignore[arg-type]
            self.version = message.version
            if message.WhichOneof("body") == "snapshot":
                self.endpoints = {row.endpoint_id: row for row in message.snapshot.endpoints}
                self.models = {row.model: row for row in message.snapshot.models}
            elif message.WhichOneof("body") == "delta":
                for name in message.delta.remove_endpoint_ids:
                    self.endpoints.pop(name, None)
                self.endpoints.update({row.endpoint_id: row for row in message.delta.upsert_endpoints})
                self.models.update({row.model: row for row in message.delta.upsert_models})
            self.drains += [row.endpoint_id for row in self.endpoints.values() if row.draining]
            self.say()

    def say(self) -> None:
        """What is applied, and what of the draining has nothing left here."""
        done = [
            name
            for name, row in self.endpoints.items()
            if row.draining and not self.in_flight.get(row.replica_id)
        ]
        word = routing_pb2.AcknowledgeRequest(
            router_id=self.router_id, incarnation=self.incarnation, term=self.seat.reign.tenure.term,
            version=self.version, drained_endpoint_ids=done,
        )  # fmt: skip
        if not self.deaf:
            self._acks.put_nowait(word)

    async def _acknowledge(self) -> None:
        async def words() -> AsyncIterator[routing_pb2.AcknowledgeRequest]:
            while True:
                yield await self._acks.get()

        await self.seat.routing.Acknowledge(words(), None)  # type: ignore[arg-type]
