"""A simulated controller: the real core between a lease, a store that may refuse, agents and routers.

It is one process: frozen, it does nothing at all, and what it had decided may still land when it thaws.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmgw_controller.core import desired as desired_module
from llmgw_controller.core import reconcile, routes, watching
from llmgw_controller.core.activation import Refused, decide
from llmgw_controller.core.apply import apply
from llmgw_controller.core.heard import NodeHeard
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import (
    Change,
    Drain,
    DropRouter,
    FetchWeights,
    Plan,
    PutActivation,
    PutNode,
    PutRouter,
    RaiseIdleFloor,
    Start,
    Stop,
)
from llmgw_controller.core.rows import ActivationRow, RouterRow, Wish
from llmgw_controller.core.state import Snapshot, Watched
from llmgw_controller.core.view import fleet_view
from llmgw_kit.ids import LeaseTerm, ModelId, NodeId, RouterId, SessionEpoch, ShardId
from tests.simulation.leader import Leader
from tests.simulation.said import Beat, Desired, Hello, Stream, Told, Welcome
from tests.simulation.store import TTL_S, Fenced

if TYPE_CHECKING:
    from tests.simulation.router import Router

#: Twice what is usual: half the passes, and every reaction a little later.
PASS_S = 4.0
#: Passes from one look to the next at what costs time to look at.
REST_EVERY = 40
VIEW_EVERY = 20


@dataclass(frozen=True)
class Routes:
    term: int
    version: int
    table: routes.RouteTable


class Controller(Leader):
    def boot(self) -> None:
        super().boot()
        self._at(self.sim.world.between(0.0, PASS_S), self._decide)

    def hang_up(self, word: str | None) -> None:
        for stream in list(self.streams.values()):
            if word is None:
                stream.close()
            else:
                stream.down.send(word)

    def _forget(self) -> None:
        super()._forget()
        self.busy = False
        self.streams: dict[NodeId, Stream] = {}
        self.heard: dict[NodeId, NodeHeard] = {}
        self.watchers: dict[str, Router] = {}
        self.acks: dict[str, set[tuple[str, str]]] = {}
        self.sent: dict[NodeId, Desired] = {}
        #: Stream -> version -> the shards that were listed.
        self.listed: dict[Stream, dict[int, frozenset[ShardId]]] = {}
        self.watched = Watched()
        self.table: routes.RouteTable | None = None
        self.version = 0
        self.passes = 0

    # --- one pass

    def _decide(self) -> None:
        self._at(PASS_S, self._decide)
        if self.term is not None and not self._may_act():
            self._step_down("its time is over")
        if self.term is None or self.busy:
            return
        if self.sim.store.paused:
            return  # Rows cannot be read: no pass.
        self.watched = watching.watch(self.watched, self._snapshot(), self.clock)
        snapshot = self._snapshot()
        plan = reconcile.reconcile(snapshot, self.clock)
        self.passes += 1
        if self.passes % REST_EVERY == 0:
            self._rests(snapshot, plan)
        self.busy = True
        delay_s = self.sim.world.between(0.002, 0.05)
        # The request to the store is on its way: whatever happens to this process, it may land late.
        if self.sim.faulty and self.sim.world.chance(self.sim.stall_share):
            stall_s = self.sim.world.between(0.5, 2.5) * TTL_S
            self.sim.landed("controller frozen past its lease" if stall_s > TTL_S else "controller frozen")
            self.freeze(stall_s)
            delay_s = stall_s
        self.sim.world.at(delay_s, self._land, self.life, self.term, plan, self.sim.world.now)

    def _rests(self, snapshot: Snapshot, plan: Plan) -> None:
        """A second pass over the rows as the plan leaves them changes nothing."""
        after = replace(snapshot, stored=apply(snapshot.stored, plan.changes))
        again = reconcile.reconcile(after, self.clock)
        if again.changes:
            self.sim.checks.fail(f"a second pass still changes {again.changes[:3]}")

    def _snapshot(self) -> Snapshot:
        assert self.term is not None
        stored = self.sim.store.stored
        members = {(str(row.router_id), row.incarnation) for row in stored.routers.values()}
        held: dict[ModelId, int] = {}
        for router in self.sim.routers:
            for model, count in router.held().items():
                held[model] = held.get(model, 0) + count
        return Snapshot(
            term=self.term,
            term_started=self.term_started,
            catalog=self.sim.catalog,
            stored=stored,
            heard=dict(self.heard),
            activity=self.sim.redis.read(),
            drained=frozenset(key for key, told in self.acks.items() if members <= told),
            held=held,
            intervals=self.sim.intervals,
            awake_since=self.awake.since,
            asleep_since=self.awake.asleep_since,
            watched=self.watched,
        )

    def _land(self, life: int, term: LeaseTerm, plan: Plan, decided_at: float) -> None:
        if self.sim.store.paused:
            late_s = self.sim.store.paused_until - self.sim.world.now + 0.01
            self.sim.world.at(late_s, self._land, life, term, plan, decided_at)
            return
        try:
            self.sim.store.commit(term, plan.changes, decided_at=decided_at)
        except Fenced:
            self.sim.checks.count("writes fenced")
            if life == self.life and self.term == term:
                self._at(0.0, self._step_down, "fenced")
            return
        for change in plan.changes:
            self.sim.world.note(self.name, repr(change)[:160])
        if life == self.life and self.term == term:
            self._at(0.0, self._act, term, plan)

    def _act(self, term: LeaseTerm, plan: Plan) -> None:
        if self.term != term:
            return
        self.busy = False
        stored = self.sim.store.stored
        for command in plan.commands:
            if isinstance(command, FetchWeights):
                continue
            wish = {Start: Wish.SERVE, Drain: Wish.DRAIN, Stop: Wish.STOP}[type(command)]
            for row in stored.replicas.values():
                for shard in row.shards:
                    if shard.shard_id == command.shard_id and not shard.released:
                        reason = self._reason(row.reason, wish)
                        self._send(command.node_id, Told(term, row, shard, wish, reason))
        self._send_desired()
        self._publish()
        self._refuse()

    def _send_desired(self) -> None:
        for node_id in sorted(self.streams):
            wanted = tuple(
                (row, shard, wish, self._reason(row.reason, wish))
                for row, shard, wish in desired_module.desired_for(
                    node_id, self.sim.store.stored, self.sim.catalog
                )
            )
            sent = self.sent.get(node_id)
            if (sent is None or sent.shards != wanted) and self.term is not None:
                desired = Desired(self.term, sent.version + 1 if sent is not None else 1, wanted)
                self.sent[node_id] = desired
                names = frozenset(shard.shard_id for _, shard, _, _ in wanted)
                self.listed.setdefault(self.streams[node_id], {})[desired.version] = names
                self._send(node_id, desired)

    def _send(self, node_id: NodeId, message: Any) -> None:
        stream = self.streams.get(node_id)
        if stream is None:
            return
        if self.sim.faulty and self.sim.world.chance(0.01):
            self.sim.world.note(self.name, f"a message to {node_id} is lost, and its stream with it")
            self.sim.landed("message lost")
            stream.agent.sim.world.at(0.2, stream.agent._hang_up)
            return
        stream.down.send(message)
        if self.sim.faulty and self.sim.world.chance(0.05):
            self.sim.landed("message doubled")
            stream.down.send(message)

    @staticmethod
    def _reason(reason: str | None, wish: Wish) -> str:
        return reason or wish.value

    # --- agents

    def hear(self, stream: Stream, message: Any) -> None:
        if not self.running:
            return
        if self.frozen or self.busy:  # Read when there is somebody to read.
            self.sim.world.at(0.05, self.hear, stream, message)
            return
        if not stream.up.open:
            return
        node_id = stream.agent.row.node_id
        if self.term is None or not self._may_act():
            stream.down.send("not_leader")
            return
        if isinstance(message, Hello):
            self._welcome(stream, message)
            return
        assert isinstance(message, Beat)
        known = self.heard.get(node_id)
        if known is None or not self._is_open(stream, message.epoch):
            stream.down.send("fenced")
            return
        self.sim.checks.listens(node_id, message.epoch, self.term)
        self._note(stream, known, message)
        stream.down.send("pong")

    def _is_open(self, stream: Stream, epoch: SessionEpoch) -> bool:
        """The one session of its node that counts."""
        node_id = stream.agent.row.node_id
        return self.streams.get(node_id) is stream and self.heard[node_id].session_epoch == epoch

    def _welcome(self, stream: Stream, hello: Hello) -> None:
        assert self.term is not None
        stored = self.sim.store.stored.nodes.get(hello.node.node_id)
        epoch = SessionEpoch((stored.session_epoch if stored else 0) + 1)
        row = replace(
            hello.node,
            agent_instance=hello.instance,
            session_epoch=epoch,
            last_heard=self.clock,
            lost_at=stored.lost_at if stored else None,
            schedulability=stored.schedulability if stored else hello.node.schedulability,
        )
        if not self.write([PutNode(row)]):
            stream.down.send("not_leader")
            return
        old = self.streams.pop(row.node_id, None)
        if old is not None and old is not stream:
            self.sim.checks.count("sessions fenced")
            old.down.send("fenced")
        self.streams[row.node_id] = stream
        self.sent.pop(row.node_id, None)
        self.heard[row.node_id] = NodeHeard(
            node_id=row.node_id,
            session_epoch=epoch,
            connected=True,
            heard_at=self.clock,
            devices=hello.devices,
            shards={report.shard_id: report for report in hello.reports},
            weights=(),
            engines=("llamacpp",),
            disk_free_bytes=None,
            answered=frozenset() if hello.tells_applied else None,
        )
        stream.down.send(Welcome(self.term, epoch))
        self._send_desired()

    def _note(self, stream: Stream, known: NodeHeard, beat: Beat) -> None:
        shards = {report.shard_id: report for report in beat.reports}
        answered = known.answered
        if beat.applied is not None:
            answered = self.listed[stream][beat.applied]
        self.heard[known.node_id] = replace(
            known, heard_at=self.clock, shards=shards, devices=beat.devices, answered=answered
        )

    def stream_ended(self, stream: Stream) -> None:
        node_id = stream.agent.row.node_id
        self.listed.pop(stream, None)
        if self.streams.get(node_id) is stream:
            del self.streams[node_id]
            self.heard[node_id] = replace(self.heard[node_id], connected=False)

    # --- routers

    def watch(self, router: "Router") -> bool:
        """A router opens WatchRoutes; it is a member from now on."""
        if not self.says_it_leads or self.busy:
            return False
        name = RouterId(router.name)
        member = self.sim.store.stored.routers.get(name)
        if member is None or member.incarnation != router.incarnation:
            crashed = self.clock if member is not None else None
            row = RouterRow(name, router.incarnation, self.clock, crashed)
            if not self.write([PutRouter(row)]):
                return False
        self.watchers[router.name] = router
        if self.table is not None and self.term is not None:
            router.send(self, Routes(self.term, self.version, self.table))
        return True

    def goodbye(self, router: "Router", *, lost: bool) -> None:
        """A router leaves on purpose, and is a member no longer."""
        if not self.says_it_leads or self.busy:
            return
        known = self.sim.store.stored.routers.get(RouterId(router.name))
        if known is None or known.incarnation != router.incarnation:
            return
        if self.write(self._after_goodbye(router.name, lost=lost)):
            self.sim.checks.left(router.name, lost=lost)

    def _after_goodbye(self, name: str, *, lost: bool) -> list[Change]:
        return [DropRouter(RouterId(name)), *([RaiseIdleFloor(self.clock)] if lost else [])]

    def ask(self, model: ModelId) -> bool:
        if not self.says_it_leads or self.busy:
            return False
        now = self.clock
        open_one = self.sim.store.stored.activations.get(model)
        opened = open_one.opened_at if open_one else now
        return self.write([PutActivation(ActivationRow(model, opened, now))])

    def acknowledge(self, router: "Router", drained: set[str]) -> None:
        if self.says_it_leads:
            for endpoint_id in drained:
                self.acks.setdefault(endpoint_id, set()).add((router.name, router.incarnation))

    def _publish(self) -> None:
        assert self.term is not None
        snapshot = self._snapshot()
        table = routes.routes(snapshot, self.clock)
        if self.passes % VIEW_EVERY == 0:
            view = fleet_view(snapshot, verdicts(snapshot, self.clock), self.clock)
            self.sim.rows.seen(view, self.sim.agents)
        if table == self.table:
            return
        learning = is_learning(snapshot, self.clock)
        self.sim.told(snapshot.stored, self.table, table, learning=learning)
        self.table, self.version = table, self.version + 1
        for name in sorted(self.watchers):
            self.watchers[name].send(self, Routes(self.term, self.version, table))

    def _refuse(self) -> None:
        """Whoever waits for what cannot be had is told so."""
        snapshot = self._snapshot()
        for name in sorted(self.watchers):
            for model in sorted(self.watchers[name].waiting):
                if model not in snapshot.stored.activations and isinstance(
                    decide(snapshot, model, self.clock), Refused
                ):
                    self.watchers[name].refused(model)

    def write(self, changes: list[Change]) -> bool:
        """One write beside the passes; False when it did not land."""
        assert self.term is not None
        if self.sim.store.paused:
            return False
        try:
            self.sim.store.commit(self.term, changes, decided_at=self.sim.world.now)
        except Fenced:
            self._step_down("fenced")
            return False
        return True
