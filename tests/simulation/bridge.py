"""A real controller as one process of the looped simulation: office, leadership, reign, and the servicers
that agents and routers reach; between them and the fakes, the wire."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llmgw.v1 import agent_pb2, routing_pb2
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.lease import LeaseTiming
from llmgw_controller.core.plan import Change
from llmgw_controller.core.routes import RouteTable
from llmgw_controller.core.view import fleet_view
from llmgw_controller.fleet import Session
from llmgw_controller.leadership import Tenure
from llmgw_controller.office import Office
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign, Rules
from llmgw_controller.reign import World as Grounds
from llmgw_controller.servicer_agent import AgentServicer
from llmgw_controller.servicer_routing import RoutingServicer
from llmgw_kit.errors import LlmgwError
from llmgw_kit.ids import ModelId
from llmgw_kit.lifecycle import cancel_all
from tests.simulation import wire
from tests.simulation.controller import VIEW_EVERY, Routes
from tests.simulation.said import Beat, Hello, Stream
from tests.simulation.shared import LeasePort, NoWeights, RedisPort, StorePort
from tests.simulation.store import MARGIN_S, TTL_S
from tests.simulation.virtual import GatedClock

if TYPE_CHECKING:
    from tests.simulation.looped import LoopSim
    from tests.simulation.router import Router

TIMING = LeaseTiming(ttl_s=TTL_S, renew_s=2.0, retry_s=1.0, margin_s=MARGIN_S)
INTERVAL_S = 2.0
ACTIVITY_TICK_S = 5.0


class Outcomes:
    """Nobody reads the metrics here."""

    def passed(self, outcome: str, seconds: float) -> None: ...


class Process:
    """Looks to agents, routers and faults like the simulated controller; within, everything is real."""

    busy = False

    def __init__(self, sim: "LoopSim", name: str) -> None:
        self.sim = sim
        self.name = name
        self.life = 0
        self.running = False
        self.frozen_until = 0.0
        self.watchers: dict[str, Router] = {}
        self._published = 0

    # --- the process

    def boot(self) -> None:
        self.running, self.frozen_until = True, 0.0
        self.watchers = {}
        #: Agents' streams: what is said on each, and who reads it.
        self._words: dict[Stream, asyncio.Queue[agent_pb2.ConnectRequest]] = {}
        self._serving: dict[object, asyncio.Task[None]] = {}
        self._acks: dict[str, asyncio.Queue[routing_pb2.AcknowledgeRequest]] = {}
        self._asking: dict[ModelId, asyncio.Task[None]] = {}
        loop = self.sim.world.loop
        clock = GatedClock(loop, self.gate, lambda: self.sim.store.skew_s)
        self._grounds = Grounds(StorePort(self), RedisPort(self), NoWeights(), clock, Outcomes(), lambda: ())  # type: ignore[arg-type]
        self._rules = Rules(
            cluster="sim",
            configured=(),
            intervals=self.sim.intervals,
            reconcile_interval_s=INTERVAL_S,
            activity_tick_s=ACTIVITY_TICK_S,
            beat_interval_s=5.0,
            events_keep_s=3600.0,
            mirror_urls=(),
        )
        self.office = Office(
            LeasePort(self),
            clock,
            name=f"{self.name}#{self.life}",
            address=f"{self.name}:7070",
            timing=TIMING,
            make=self._make,
        )
        self._agents = AgentServicer(self.office)
        self._routing = RoutingServicer(self.office)
        self._leading = self._task(self.office.leadership.run(), "leadership")

    def _make(self, tenure: Tenure) -> Reign:
        self.sim.world.note(self.name, f"leads, term {tenure.term}")
        reign = Reign(tenure, self._grounds, self._rules, name=self.name)
        publish = reign.board.publish

        def published(table: RouteTable, now: float) -> None:
            before = reign.board.table
            publish(table, now)
            if table != before:
                self._look(reign, before, table)

        reign.board.publish = published  # type: ignore[method-assign]
        hear = reign.fleet.hear

        async def heard(session: Session, message: agent_pb2.ConnectRequest) -> None:
            before = reign.fleet.heard().get(session.node_id)
            await hear(session, message)
            if reign.fleet.heard().get(session.node_id) is not before:
                self.sim.checks.listens(session.node_id, message.session_epoch, tenure.term)

        reign.fleet.hear = heard  # type: ignore[method-assign]
        return reign

    def _look(self, reign: Reign, before: RouteTable | None, after: RouteTable) -> None:
        stored = reign.ledger.stored
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        self.sim.told(stored, before, after, learning=is_learning(snapshot, now))
        self._published += 1
        if self._published % VIEW_EVERY == 0:
            self.sim.rows.seen(fleet_view(snapshot, verdicts(snapshot, now), now), self.sim.agents)

    def _task(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self.sim.world.loop.create_task(work, name=f"{self.name} {name}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.sim.world.breaks(error)

    async def gate(self) -> None:
        """A frozen process does nothing; it goes on from here when it wakes."""
        while self.frozen:
            await asyncio.sleep(self.frozen_until - self.sim.world.now + 0.001)

    @property
    def frozen(self) -> bool:
        return self.sim.world.now < self.frozen_until

    @property
    def says_it_leads(self) -> bool:
        return self.running and not self.frozen and self.office.reign is not None

    @property
    def clock(self) -> float:
        reign = self.office.reign
        assert reign is not None
        return reign.tenure.now()

    def freeze(self, seconds: float) -> None:
        if self.running and not self.frozen:
            self.sim.world.note(self.name, f"freezes for {seconds:.0f} s")
            self.frozen_until = self.sim.world.now + seconds

    def crash(self) -> None:
        if not self.running:
            return
        self.sim.world.note(self.name, "crashes")
        self.running = False
        self.life += 1
        for task in (self._leading, *self._serving.values(), *self._asking.values()):
            task.cancel()
        for stream in self._words:
            stream.close()
        self.watchers = {}
        self.sim.world.at(self.sim.world.between(1.0, 30.0), self._restart)

    def _restart(self) -> None:
        self.sim.world.note(self.name, "starts")
        self.boot()

    # --- agents

    def hear(self, stream: Stream, message: Any) -> None:
        """What an agent says; it is read when there is somebody to read."""
        if not self.running:
            return
        if isinstance(message, Hello):
            words: asyncio.Queue[agent_pb2.ConnectRequest] = asyncio.Queue()
            words.put_nowait(wire.hello(message))
            self._words[stream] = words
            self._serving[stream] = self._task(self._serve(stream, words), "stream")
        elif isinstance(message, Beat) and stream in self._words:
            for word in wire.beat(message):
                self._words[stream].put_nowait(word)

    async def _serve(self, stream: Stream, words: asyncio.Queue[agent_pb2.ConnectRequest]) -> None:
        async def said() -> AsyncIterator[agent_pb2.ConnectRequest]:
            while True:
                word = await words.get()
                await self.gate()
                yield word

        try:
            await self.gate()
            async for message in self._agents.Connect(said(), None):  # type: ignore[arg-type]
                await self.gate()
                if message.reject.code == "fenced":
                    self.sim.checks.count("sessions fenced")
                if (told := wire.told(message, stream.agent)) is not None:
                    self._send(stream, told)
        except LlmgwError:
            pass  # NotLeader, and whatever a leader refuses: the stream ends with a status.
        finally:
            self._words.pop(stream, None)
            self._serving.pop(stream, None)
            stream.down.send("not_leader")

    def _send(self, stream: Stream, message: Any) -> None:
        if self.sim.faulty and self.sim.world.chance(0.005):
            self.sim.landed("message lost")
            self.sim.world.at(0.2, stream.agent._hang_up)
            return
        stream.down.send(message)
        if self.sim.faulty and self.sim.world.chance(0.02):
            self.sim.landed("message doubled")
            stream.down.send(message)

    def stream_ended(self, stream: Stream) -> None:
        if (task := self._serving.get(stream)) is not None:
            task.cancel()

    # --- routers

    def watch(self, router: "Router") -> bool:
        """A router opens WatchRoutes."""
        if not self.says_it_leads:
            return False
        self.watchers[router.name] = router
        key = ("watch", router.name)
        if (older := self._serving.get(key)) is not None:
            older.cancel()
        self._serving[key] = self._task(self._watch(router, router.incarnation, key), "watch")
        return True

    async def _watch(self, router: "Router", incarnation: str, key: object) -> None:
        request = routing_pb2.WatchRoutesRequest(
            router_id=router.name, incarnation=incarnation, highest_term_seen=router.highest_term or None
        )
        table = RouteTable()
        acks: asyncio.Queue[routing_pb2.AcknowledgeRequest] = asyncio.Queue()

        async def words() -> AsyncIterator[routing_pb2.AcknowledgeRequest]:
            while True:
                word = await acks.get()
                await self.gate()
                yield word

        acknowledging = asyncio.create_task(self._routing.Acknowledge(words(), None))  # type: ignore[arg-type]
        try:
            self._acks[router.name] = acks
            async for message in self._routing.WatchRoutes(request, None):  # type: ignore[arg-type]
                await self.gate()
                if message.WhichOneof("body") == "move_on":
                    break
                table = wire.table(table, message)
                router.send(self, Routes(message.term, message.version, table))  # type: ignore[arg-type]
        except LlmgwError:
            pass
        finally:
            if self._serving.get(key) is asyncio.current_task():
                self.watchers.pop(router.name, None)
                self._acks.pop(router.name, None)
            with suppress(LlmgwError):
                await cancel_all(acknowledging)

    def acknowledge(self, router: "Router", drained: set[str]) -> None:
        """A router says what it has applied, and what it has finished with."""
        term, version = router.version
        if router.name in self._acks:
            self._acks[router.name].put_nowait(
                routing_pb2.AcknowledgeRequest(
                    router_id=router.name,
                    incarnation=router.incarnation,
                    term=term,
                    version=version,
                    drained_endpoint_ids=sorted(drained),
                )
            )

    def goodbye(self, router: "Router", *, lost: bool) -> None:
        """A router leaves on purpose."""
        if self.says_it_leads:
            request = routing_pb2.GoodbyeRequest(
                router_id=router.name, incarnation=router.incarnation, activity_lost=lost
            )
            self._task(self._goodbye(request), f"goodbye of {router.name}")

    async def _goodbye(self, request: routing_pb2.GoodbyeRequest) -> None:
        with suppress(LlmgwError):
            await self._routing.Goodbye(request, None)  # type: ignore[arg-type]
            self.sim.checks.left(request.router_id, lost=request.activity_lost)

    def ask(self, model: ModelId) -> None:
        """A router opens Activate, unless it has."""
        if self.says_it_leads and model not in self._asking:
            self._asking[model] = self._task(self._activate(model), f"activate {model}")

    async def _activate(self, model: ModelId) -> None:
        request = routing_pb2.ActivateRequest(router_id="r1", model=model, waiting=1)
        try:
            async for message in self._routing.Activate(request, None):  # type: ignore[arg-type]
                if not any(router.waiting.get(model) for router in self.sim.routers):
                    return
                if message.WhichOneof("body") == "refused":
                    for router in self.sim.routers:
                        router.refused(model)
        except LlmgwError:
            pass
        finally:
            self._asking.pop(model, None)

    # --- operators

    def write(self, changes: list[Change], done: Callable[[bool], None] = lambda _: None) -> bool:
        """Under the pen of the reign, as servicers write; whether it landed comes later."""
        reign = self.office.reign
        if reign is None or self.frozen:
            return False
        self._task(self._write(reign, changes, done), "operator")
        return True

    async def _write(self, reign: Reign, changes: list[Change], done: Callable[[bool], None]) -> None:
        try:
            async with reign.ledger.writing():
                await reign.ledger.commit(changes)
        except (Fenced, LlmgwError):
            done(False)
        else:
            reign.hints()
            done(True)
