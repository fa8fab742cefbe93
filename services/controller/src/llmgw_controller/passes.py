"""The reconciler: observe, decide, act. A pass looks at everything; a hint only makes the next one come
sooner, and a lost hint costs at most an interval.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.activations import Activations
from llmgw_controller.core.plan import (
    Change,
    Command,
    Drain,
    FetchWeights,
    Plan,
    PutEvent,
    PutReplica,
    Reserve,
    Severity,
    Start,
    Stop,
)
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Stored
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.strangers import holds_back
from llmgw_controller.fleet import Fleet
from llmgw_controller.leadership import Tenure
from llmgw_controller.ledger import Ledger
from llmgw_controller.loops import Fetches
from llmgw_controller.ports import ClaimTaken
from llmgw_controller.routes_board import RoutesBoard
from llmgw_controller.wire_rows import Untold
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import ReplicaId

log = logging.getLogger(__name__)

#: Hints that come in a burst (five hundred agents reconnecting) share a pass.
GATHER_S = 0.02
#: A pass that still finds something to do is followed by another at once, so many times in a row.
ROUNDS_MAX = 8
#: After the store did not answer.
RETRY_S = 1.0


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
    mirror: Fetches
    hints: Hints
    clock: Clock
    interval_s: float
    snapshot: Callable[[Stored], Snapshot]
    metrics: PassMetrics
    #: A new engine credential; drawn here since decisions know no chance.
    credential: Callable[[], str] = lambda: secrets.token_urlsafe(24)
    _commands: int = 0
    #: Rows that no message carries, and that were told of.
    _untold: set[Untold] = field(default_factory=set)

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
                    await self.ledger.checked()
                    await self.fleet.write_inventories()
                    stored = self.ledger.stored
                # In a thread: a large fleet takes long to decide on, and renewals must not wait for that.
                # What a snapshot holds is never changed in place.
                decided = await asyncio.to_thread(reconcile, self.snapshot(stored), self.tenure.now())
                plan = self._with_credentials(decided)
                news = self.fleet.take_news()
                try:
                    await self.ledger.commit([*news, *plan.changes])
                except (ClaimTaken, Unavailable):
                    self.fleet.put_back(news)
                    raise
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
        snapshot = self.snapshot(stored)
        if not holds_back(snapshot, now):
            self.board.publish(await asyncio.to_thread(routes, snapshot, now), now)
            self._tell_untold(now)
        self.activations.passed()

    def _tell_untold(self, now: float) -> None:
        """Once a term, with the next commit."""
        news = [one for one in self.board.untold if one not in self._untold]
        self._untold.update(news)
        self.fleet.put_back(
            [PutEvent(now, "row_untold", one.subject, one.text, Severity.TROUBLE) for one in news]
        )

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
        """A new credential for each generation that is placed, also in what the same plan writes of it later.
        An engine that was taken up checks the one that its agent told."""
        drawn: dict[ReplicaId, str] = {}
        changes: list[Change] = []
        for change in plan.changes:
            if isinstance(change, Reserve) and change.replica.credential is None:
                drawn[change.replica.replica_id] = self.credential()
            if (
                isinstance(change, (Reserve, PutReplica))
                and change.replica.credential is None
                and change.replica.replica_id in drawn
            ):
                row = replace(change.replica, credential=drawn[change.replica.replica_id])
                changes.append(replace(change, replica=row))
            else:
                changes.append(change)
        return replace(plan, changes=tuple(changes))
