"""Everything of one term of leading: it is made when the lease is taken and ends when it is lost."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1.operator_pb2 import GetStatusResponse
from llmgw_controller.activations import Activations
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.idleness import fresh_routers
from llmgw_controller.core.plan import Change, PutEvent, Severity
from llmgw_controller.core.rows import Stored
from llmgw_controller.core.state import ControllerSeen, Intervals, Snapshot, Watched
from llmgw_controller.core.watching import watch
from llmgw_controller.fleet import Fleet
from llmgw_controller.history import StatusRecorder
from llmgw_controller.leadership import Tenure
from llmgw_controller.ledger import Ledger
from llmgw_controller.lookout import Lookout
from llmgw_controller.loops import ActivityLoop, Fetches, keep_asking
from llmgw_controller.passes import Hints, Passes, PassMetrics
from llmgw_controller.ports import ActivityReader, MirrorClient, Store
from llmgw_controller.routes_board import RoutesBoard
from llmgw_controller.wakefulness import Wakefulness
from llmgw_controller.whole_status import whole_status
from llmgw_controller.wire_replicas import ToldShards
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import ModelId, RouterId
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)

#: Between two looks for old events.
PRUNE_EVERY_S = 600.0


@dataclass(frozen=True)
class World:
    """What a reign stands on; outlives it."""

    store: Store
    activity: ActivityReader
    mirror: MirrorClient
    clock: Clock
    metrics: PassMetrics
    #: Controllers that announced themselves lately.
    controllers: Callable[[], tuple[ControllerSeen, ...]]


@dataclass(frozen=True)
class Rules:
    """What the settings say of leading."""

    cluster: str
    configured: Sequence[Model]
    intervals: Intervals
    reconcile_interval_s: float
    activity_tick_s: float
    beat_interval_s: float
    #: Older events are forgotten.
    events_keep_s: float
    #: Base URLs that nodes fetch weights from.
    mirror_urls: Sequence[str]
    #: The rows do not outlive this process: what agents run and no row knows is taken up at first.
    adopts: bool = False


class Reign:
    """One term. `run` ends by raising Fenced, or a bug; `close` tells everybody to go elsewhere."""

    def __init__(self, tenure: Tenure, world: World, rules: Rules, *, name: str) -> None:
        self.tenure = tenure
        self.world = world
        self.rules = rules
        self.name = name
        self.hints = Hints()
        self.ledger = Ledger(world.store, tenure, rules.configured)
        self.fleet = Fleet(tenure, self.ledger, self.hints, rules.mirror_urls, world.clock, self._learns)
        self.board = RoutesBoard(tenure.term)
        self.activations = Activations(tenure, self.ledger)
        self._activity = ActivityLoop(world.activity, self.ledger, world.clock, rules.activity_tick_s)
        self._awake = Wakefulness(world.clock, tenure.now)
        self._watched = Watched()
        #: What was found of one snapshot serves the next, as far as nothing of it has moved.
        self._found: dict[str, Any] = {}
        self.told_shards = ToldShards()
        self.lookout = Lookout(world.clock)
        self._fetches = Fetches(world.mirror, self.ledger, world.clock)
        self._recorder = StatusRecorder(
            world.store.history, self.ledger, tenure, world.clock, self._status, keep_s=rules.events_keep_s
        )
        self._passes = Passes(
            tenure=tenure,
            ledger=self.ledger,
            fleet=self.fleet,
            board=self.board,
            activations=self.activations,
            mirror=self._fetches,
            hints=self.hints,
            clock=world.clock,
            interval_s=rules.reconcile_interval_s,
            snapshot=self.snapshot,
            metrics=world.metrics,
        )

    def _learns(self) -> bool:
        """What agents run and no row knows may still be taken up."""
        passed_s = self.tenure.now() - self.tenure.started
        return self.rules.adopts and passed_s < self.rules.intervals.learning_window_s

    def snapshot(self, stored: Stored) -> Snapshot:
        """All that a decision may look at, with these rows."""
        members = ((row.router_id, row.incarnation) for row in stored.routers.values())
        activity = self._activity.newest
        bare = Snapshot(
            term=self.tenure.term,
            term_started=self.tenure.started,
            catalog=self.ledger.catalog,
            stored=stored,
            heard=self.fleet.heard(),
            activity=activity,
            drained=self.board.drained(members),
            held={},
            intervals=self.rules.intervals,
            controllers=self.world.controllers(),
            adopts=self.rules.adopts,
            awake_since=self._awake.since,
            asleep_since=self._awake.asleep_since,
            watched=self._watched,
            found=self._found,
        )
        bare.held.update(self._held(bare))
        return bare

    def applied(self, stored: Stored) -> dict[RouterId, int]:
        """The version of the routes that each member has applied with all its workers, where it said so."""
        found = {
            row.router_id: self.board.applied(row.router_id, row.incarnation)
            for row in stored.routers.values()
        }
        return {router_id: version for router_id, version in found.items() if version is not None}

    def _held(self, snapshot: Snapshot) -> dict[ModelId, int]:
        """Per router the larger of two words: its last report, and what it said when it asked."""
        fresh = fresh_routers(snapshot)
        total: dict[ModelId, int] = {}
        for router_id in sorted({*fresh, *self.activations.routers}):
            asked = self.activations.held(router_id)
            reported = fresh[router_id].held if router_id in fresh else {}
            for model in sorted({*asked, *(ModelId(name) for name in reported)}):
                count = max(asked.get(model, 0), reported.get(model, 0))
                total[model] = total.get(model, 0) + count
        return total

    async def run(self) -> None:
        """Until the term is over: raises Fenced then, and whatever is a bug."""
        tasks = [
            asyncio.create_task(self._begin_and_pass(), name="passes"),
            asyncio.create_task(self._activity.run(), name="activity"),
            asyncio.create_task(self._awake.run(), name="wakefulness"),
            asyncio.create_task(self._watch(), name="watching"),
            asyncio.create_task(
                keep_asking(self.activations, self.world.clock, self.hints), name="activations"
            ),
            asyncio.create_task(self._forget_old_events(), name="old events"),
            asyncio.create_task(self._recorder.run(), name="status history"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_all(*tasks)
            await self._fetches.close()

    async def _watch(self) -> None:
        """Look again and again at what one look says too little of."""
        while True:
            await self.world.clock.sleep(self.rules.reconcile_interval_s)
            if self.ledger.known:
                snapshot, now = self.snapshot(self.ledger.stored), self.tenure.now()
                # In a thread, as the passes: a large fleet has many models.
                self._watched = await asyncio.to_thread(watch, self._watched, snapshot, now)

    async def _begin_and_pass(self) -> None:
        while True:
            try:
                async with self.ledger.writing() as stored:
                    await self.ledger.commit(self._first_words(stored))
                break
            except Unavailable as e:
                log.warning("cannot begin: %s", e.text)
                await self.world.clock.sleep(1.0)
        await self._passes.run()

    def _first_words(self, stored: Stored) -> list[Change]:
        now = self.tenure.now()
        text = f"term {self.tenure.term} on {self.world.store.kind}, {len(stored.nodes)} nodes known"
        changes: list[Change] = [PutEvent(now, "leading", self.name, text, Severity.INFO)]
        for name in self.ledger.catalog.shadowed:
            text = "a stored model of this name is hidden by the configuration's"
            changes.append(PutEvent(now, "model_shadowed", name, text, Severity.NOTE))
        for name in self.ledger.not_understood:
            text = "what is stored of it cannot be understood by this release; it is left out"
            changes.append(PutEvent(now, "model_not_understood", name, text, Severity.TROUBLE))
        return changes

    async def _status(self) -> GetStatusResponse:
        """For the record."""
        return await whole_status(self)

    async def _forget_old_events(self) -> None:
        while True:
            await self.world.clock.sleep(PRUNE_EVERY_S)
            self.tenure.require()
            before = self.tenure.now() - self.rules.events_keep_s
            try:
                if gone := await self.world.store.prune_events(self.tenure.term, before=before):
                    log.info("forgot %d events older than %.0f days", gone, self.rules.events_keep_s / 86_400)
            except Unavailable as e:
                log.warning("old events stay for now: %s", e.text)

    def close(self, leader_address: str | None, *, stopping: bool) -> None:
        """End every stream of this term. `stopping`: we go on purpose, and there is no leader yet."""

        def last() -> pb.ConnectResponse:
            message = pb.ConnectResponse()
            if stopping:
                message.move_on.SetInParent()
            else:
                message.reject.code = "not_leader"
                message.reject.text = f"controller {self.name} lost the lease of term {self.tenure.term}"
            if leader_address is not None:
                target = message.move_on if stopping else message.reject
                target.leader_address = leader_address
            return message

        self.fleet.end_all(last)
        self.board.end()
        self.activations.passed()
        self.ledger.wake()
