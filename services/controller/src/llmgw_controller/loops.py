"""Observe, decide, act: the pass, and the smaller loops that feed it. One set per term.

Level-triggered: a pass looks at everything. A hint only makes the next one come sooner, and a lost hint costs
at most an interval.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.activations import Activations
from llmgw_controller.core.activity import Activity
from llmgw_controller.core.plan import (
    Change,
    Command,
    Drain,
    FetchWeights,
    Plan,
    PutReplica,
    Reserve,
    Start,
    Stop,
)
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.state import ControllerSeen, Snapshot, Stored
from llmgw_controller.fleet import Fleet
from llmgw_controller.leadership import Tenure
from llmgw_controller.ledger import Ledger
from llmgw_controller.ports import ActivityReader, ClaimTaken, MirrorClient, Roster
from llmgw_controller.routes_board import RoutesBoard
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.ids import ModelId, ReplicaId

log = logging.getLogger(__name__)

#: Hints that come in a burst (five hundred agents reconnecting) share a pass.
GATHER_S = 0.02
#: A pass that still finds something to do is followed by another at once, so many times in a row.
ROUNDS_MAX = 8
#: After the store did not answer.
RETRY_S = 1.0
#: The mirror is asked for one model's weights at most so often.
FETCH_EVERY_S = 3.0


class PassMetrics(Protocol):
    """Where a pass notes how it went."""

    def passed(self, outcome: str, seconds: float) -> None: ...


class Hints:
    """Wishes for an early pass; many are one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self._event.set()

    async def wait(self, clock: Clock, most_s: float) -> None:
        """Until a hint, or so long; hints up to here are used up."""
        waiting = asyncio.ensure_future(self._event.wait())
        sleeping = asyncio.ensure_future(clock.sleep(most_s))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()
        self._event.clear()


@dataclass
class Passes:
    """The reconciler: load, decide, commit, command."""

    tenure: Tenure
    ledger: Ledger
    fleet: Fleet
    board: RoutesBoard
    activations: Activations
    mirror: "Fetches"
    hints: Hints
    clock: Clock
    interval_s: float
    snapshot: Callable[[Stored], Snapshot]
    metrics: PassMetrics
    #: A new engine credential; drawn here since decisions know no chance.
    credential: Callable[[], str] = lambda: secrets.token_urlsafe(24)
    _commands: int = 0

    async def run(self) -> None:
        """For ever. Raises Fenced when the term is over, and whatever is a bug."""
        while True:
            self.tenure.require()
            began = self.clock.monotonic_s()
            wait_s = self.interval_s
            try:
                outcome = await self.once()
            except ClaimTaken as e:
                log.info("decided on old rows (%s); again", e.text)
                outcome, wait_s = "claim_taken", 0.0
            except Unavailable as e:
                log.warning("no pass: %s; again in %.0f s", e.text, RETRY_S)
                outcome, wait_s = "unavailable", 0.0
                await self.clock.sleep(RETRY_S)
            self.metrics.passed(outcome, self.clock.monotonic_s() - began)
            await self.hints.wait(self.clock, wait_s)
            await self.clock.sleep(GATHER_S)

    async def once(self) -> str:
        """One pass, repeated while it finds something to do; what came of it, for the metrics."""
        outcome = "nothing"
        for round_ in range(ROUNDS_MAX):
            async with self.ledger.writing() as stored:
                if round_ == 0:
                    stored = await self.ledger.read()
                # In a thread: a large fleet takes long to decide on, and renewals must not wait for that.
                # What a snapshot holds is never changed in place.
                decided = await asyncio.to_thread(reconcile, self.snapshot(stored), self.tenure.now())
                plan = self._with_credentials(decided)
                await self.ledger.commit(plan.changes)
            await self._act(plan)
            if not plan.changes:
                return outcome
            outcome = "changed"
        self.hints()
        return outcome

    async def _act(self, plan: Plan) -> None:
        """Tell agents, routers and waiters what the rows now say."""
        self.tenure.require()
        stored, now = self.ledger.stored, self.tenure.now()
        self.fleet.publish(stored)
        for command in plan.commands:
            self._command(command, stored)
        table = await asyncio.to_thread(routes, self.snapshot(stored), now)
        self.board.publish(table, now)
        self.activations.passed()

    def _command(self, command: Command, stored: Stored) -> None:
        if isinstance(command, FetchWeights):
            self.mirror.want(command.model)
            return
        self._commands += 1
        command_id = f"{self.tenure.term}-{self._commands}"
        match command:
            case Start(node_id, replica_id, shard_id):
                row = stored.replicas.get(replica_id)
                shard = next((one for one in row.shards if one.shard_id == shard_id), None) if row else None
                if row is None or shard is None:
                    return  # gone by a later change of the same plan
                message = pb.ConnectResponse(
                    start_shard=pb.StartShard(command_id=command_id, spec=self.fleet.spec(row, shard, stored))
                )
            case Drain(node_id, shard_id):
                message = pb.ConnectResponse(
                    drain_shard=pb.DrainShard(command_id=command_id, shard_id=shard_id)
                )
            case Stop(node_id, shard_id, reason):
                message = pb.ConnectResponse(
                    stop_shard=pb.StopShard(command_id=command_id, shard_id=shard_id, reason=reason)
                )
        self.fleet.tell(node_id, message)

    def _with_credentials(self, plan: Plan) -> Plan:
        """A new credential for each reserved generation, also in what the same plan writes of it later."""
        drawn: dict[ReplicaId, str] = {}
        changes: list[Change] = []
        for change in plan.changes:
            if isinstance(change, Reserve):
                drawn[change.replica.replica_id] = self.credential()
            if isinstance(change, (Reserve, PutReplica)) and change.replica.replica_id in drawn:
                row = replace(change.replica, credential=drawn[change.replica.replica_id])
                changes.append(replace(change, replica=row))
            else:
                changes.append(change)
        return replace(plan, changes=tuple(changes))


class Fetches:
    """Asks the mirror for weights: one call per model at a time, not too often, never in a pass's way."""

    def __init__(self, mirror: MirrorClient, ledger: Ledger, clock: Clock) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._clock = clock
        self._tasks: dict[ModelId, asyncio.Task[None]] = {}
        self._asked_at: dict[ModelId, float] = {}
        self._told: dict[ModelId, str] = {}

    def want(self, model: ModelId) -> None:
        """Ask for it soon, unless that was just done."""
        running = self._tasks.get(model)
        asked_at = self._asked_at.get(model)
        now = self._clock.monotonic_s()
        if running is not None or (asked_at is not None and now - asked_at < FETCH_EVERY_S):
            return
        self._asked_at[model] = now
        task = asyncio.create_task(self._fetch(model), name=f"fetch {model}")
        self._tasks[model] = task
        task.add_done_callback(lambda _: self._tasks.pop(model, None))

    async def _fetch(self, name: ModelId) -> None:
        model = self._ledger.catalog.models.get(name)
        if model is None:
            return
        try:
            await self._mirror.fetch(model)
            self._told.pop(name, None)
        except LlmgwError as e:
            # It is asked again while a replica waits; the same trouble again is not news.
            if self._told.get(name) != e.text:
                self._told[name] = e.text
                level = logging.ERROR if isinstance(e, InvalidRequest) else logging.WARNING
                log.log(level, "weights of %s: %s", name, e.text)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ActivityLoop:
    """Keeps the newest reading of the routers' map, and removes what no replica is left for."""

    def __init__(self, reader: ActivityReader, ledger: Ledger, clock: Clock, tick_s: float) -> None:
        self._reader = reader
        self._ledger = ledger
        self._strangers: frozenset[ReplicaId] = frozenset()
        self._clock = clock
        self._tick_s = tick_s
        self._newest = Activity(missing_reason="not_read_yet")
        self._read_at: float | None = None

    @property
    def newest(self) -> Activity:
        """Aged: a map's own clock goes on while we hold it, so that no report stays fresh by our not
        looking."""
        if self._newest.map is None or self._read_at is None:
            return self._newest
        passed = self._clock.monotonic_s() - self._read_at
        return Activity(map=replace(self._newest.map, now=self._newest.map.now + passed))

    async def run(self) -> None:
        """For ever."""
        while True:
            self._newest = await self._reader.read()
            self._read_at = self._clock.monotonic_s()
            await self._forget_strangers()
            await self._clock.sleep(self._tick_s)

    async def _forget_strangers(self) -> None:
        """A time whose replica had no row at two readings is removed: a later replica may bear its name."""
        if self._newest.map is None or not self._ledger.known:
            return
        strangers = frozenset(self._newest.map.touched.keys() - self._ledger.stored.replicas.keys())
        if gone := strangers & self._strangers:
            await self._reader.forget(gone)
        self._strangers = strangers - gone


class RosterLoop:
    """Announces this controller, leader or not, and keeps who else did."""

    def __init__(self, roster: Roster, me: ControllerSeen, clock: Clock, tick_s: float) -> None:
        self._roster = roster
        self._me = me
        self._clock = clock
        self._tick_s = tick_s
        #: Ourselves included, by address.
        self.seen: tuple[ControllerSeen, ...] = (me,)

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                self.seen = await self._roster.announce(self._me)
            except Unavailable as e:
                # Whoever waits for the same store says so louder.
                log.debug("not announced: %s", e.text)
            await self._clock.sleep(self._tick_s)

    async def leave(self) -> None:
        """Take our row away; without an answer it just grows old."""
        with suppress(Unavailable):
            await self._roster.leave(self._me)


async def keep_asking(activations: Activations, clock: Clock, hints: Hints) -> None:
    """Renew the rows of models that somebody waits for. For ever; raises Fenced."""
    while True:
        due = activations.due()
        if due:
            try:
                await activations.ask(due)
                hints()
            except Unavailable as e:
                log.warning("activations are not renewed: %s", e.text)
        await clock.sleep(1.0)
