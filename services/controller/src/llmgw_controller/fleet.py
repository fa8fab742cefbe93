"""The agents' sessions of one term: who is connected, what each said last, what each is to do."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller import wire_agent
from llmgw_controller.arrival import arrival_news, died_with_boot, exited
from llmgw_controller.core.catalog import Catalog, Source
from llmgw_controller.core.desired import DesiredShard, desired_for
from llmgw_controller.core.device_news import device_news
from llmgw_controller.core.heard import DeviceReport, Exit, NodeHeard, ShardState
from llmgw_controller.core.plan import PutEvent, PutNode, Severity
from llmgw_controller.core.rows import NodeRow, ReplicaRow, Schedulability, ShardRow, Stored
from llmgw_controller.core.strangers import strangers_of
from llmgw_controller.leadership import Tenure
from llmgw_controller.ledger import Ledger
from llmgw_controller.node_asks import Asks
from llmgw_controller.outbox import Outbox
from llmgw_controller.ports import Fenced
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict
from llmgw_kit.ids import NodeId, SessionEpoch, ShardId

log = logging.getLogger(__name__)

#: Different refusals that are told as events in one session of a node; all stand in the log.
REFUSALS_TOLD = 20
#: Events kept for a store that cannot be written now.
MOST_NEWS = 1000


@dataclass(frozen=True)
class _Source:
    shards: tuple[DesiredShard, ...]
    catalog: Catalog
    #: Of the first nodes of groups: a shard is told where its head is.
    head_addresses: tuple[str, ...]


@dataclass(eq=False)
class Session:
    """One agent's stream. Its epoch names it: what comes under an older one is dropped."""

    node_id: NodeId
    agent_instance: str
    epoch: SessionEpoch
    outbox: Outbox[pb.ConnectResponse]
    #: Of the Desired last handed over, as bytes, to see whether it changed.
    desired: bytes | None = None
    #: What it was made from: equal rows need no look at the bytes.
    source: _Source | None = None
    #: Rows of the node, catalog and nodes of the last look: most passes move none of a node's.
    seen: tuple[tuple[ReplicaRow, ...], Catalog, dict[NodeId, NodeRow]] | None = None
    desired_version: int = 0
    #: Version -> the shards it names, of those that the agent may answer yet.
    listed: dict[int, frozenset[ShardId]] = field(default_factory=dict)
    #: What the agent said it has, until it is written: it will not say it again by itself.
    unwritten: wire_agent.Inventory | None = None
    #: Refusals that were told as events.
    refusals: set[str] = field(default_factory=set)


class Fleet:
    """All sessions of this term, and what was heard in them. Lives on one loop, dies with the term."""

    def __init__(
        self,
        tenure: Tenure,
        ledger: Ledger,
        hint: Callable[[], None],
        mirror_urls: Sequence[str],
        clock: Clock,
        learns: Callable[[], bool] = lambda: False,
    ) -> None:
        self._tenure = tenure
        self._ledger = ledger
        self._hint = hint
        self._mirror_urls = tuple(mirror_urls)
        #: What a node runs and no row knows may still be taken up: until then it is not told to end it.
        self._learns = learns
        self._sessions: dict[NodeId, Session] = {}
        self._heard: dict[NodeId, NodeHeard] = {}
        self._closed = False
        self._news: list[PutEvent] = []
        #: What operators asked of nodes and is not answered yet.
        self.asks = Asks(clock, tenure.term, self.tell)

    @property
    def mirror_urls(self) -> tuple[str, ...]:
        """Where nodes fetch weights from."""
        return self._mirror_urls

    def take_news(self) -> list[PutEvent]:
        """Events of what was heard since the last time, for the next commit."""
        news, self._news = self._news, []
        return news

    def put_back(self, news: list[PutEvent]) -> None:
        """They could not be written; the newest of a fleet that has many stay."""
        self._news = [*news, *self._news][-MOST_NEWS:]

    def heard(self) -> dict[NodeId, NodeHeard]:
        """A copy: decisions and views read it while it changes."""
        return dict(self._heard)

    @property
    def connected(self) -> int:
        """Open sessions."""
        return len(self._sessions)

    async def open(self, hello: wire_agent.Hello) -> Session:
        """Accept an agent: write its node under a new epoch, fence an older session of the node.

        Raises Fenced or Unavailable when it cannot be written: an unstored epoch could be given twice."""
        async with self._ledger.writing() as stored:
            known = stored.nodes.get(hello.node_id)
            now = self._tenure.now()
            row = self._row(hello, known, now)
            older = self._sessions.get(hello.node_id)
            older_instance = older.agent_instance if older is not None else None
            news = arrival_news(hello, known, older_instance, now)
            await self._ledger.commit([PutNode(row), *news])
            if self._closed:
                raise Conflict("the term ended meanwhile")
            session = Session(hello.node_id, hello.agent_instance, row.session_epoch, Outbox(hello.node_id))
            self._sessions[hello.node_id] = session
            self._heard[hello.node_id] = NodeHeard(
                node_id=hello.node_id,
                session_epoch=row.session_epoch,
                connected=True,
                heard_at=now,
                devices=hello.inventory.devices,
                shards=hello.shards | died_with_boot(hello, known, stored),
                weights=hello.weights,
                engines=hello.inventory.engines,
                disk_free_bytes=hello.inventory.disk_free_bytes,
                answered=frozenset() if hello.tells_applied else None,
            )
        if older is not None:
            older.outbox.end(self._reject("fenced", f"another session of {hello.node_id} took over"))
            self.asks.gone(hello.node_id)
        self._welcome_with_desired(session)
        self._hint()
        return session

    def _row(self, hello: wire_agent.Hello, known: NodeRow | None, now: float) -> NodeRow:
        inventory = hello.inventory
        return NodeRow(
            node_id=hello.node_id,
            boot_id=hello.boot_id,
            agent_instance=hello.agent_instance,
            version=hello.version,
            address=inventory.address,
            fabrics=inventory.fabrics,
            pool=inventory.pool,
            engine_ports=inventory.engine_ports,
            devices=inventory.rows(),
            schedulability=known.schedulability if known else Schedulability.SCHEDULABLE,
            session_epoch=SessionEpoch((known.session_epoch if known else 0) + 1),
            last_heard=now,
            # LOST is judged and lifted by the pass, which also sees to the tombstones.
            lost_at=known.lost_at if known else None,
            reason=known.reason if known else None,
        )

    async def hear(self, session: Session, message: pb.ConnectRequest) -> None:
        """One message of an open session. Raises InvalidRequest for what makes no sense, and Unavailable
        when an inventory cannot be written now: it is kept for the next pass."""
        if self._sessions.get(session.node_id) is not session or message.session_epoch != session.epoch:
            log.info("dropped a message of an old session of %s", session.node_id)
            return
        before = self._heard[session.node_id]
        now = replace(before, heard_at=self._tenure.now())
        match message.WhichOneof("body"):
            case "beat":
                pass
            case "shard_status":
                now = _observed(session, now, message.shard_status)
            case "device_health":
                now = replace(now, devices=_updated(now, message.device_health))
            case "weights_status":
                status = message.weights_status
                now = replace(now, weights=wire_agent.held_weights(status.weights))
                if status.HasField("disk_free_bytes"):
                    now = replace(now, disk_free_bytes=status.disk_free_bytes)
            case "inventory":
                inventory = session.unwritten = wire_agent.inventory(message.inventory)
                now = replace(
                    now,
                    devices=inventory.devices,
                    engines=inventory.engines,
                    disk_free_bytes=inventory.disk_free_bytes,
                )
            case "command_result":
                result = message.command_result
                wire_agent.clean_answer(result)
                if not self.asks.hear(session.node_id, result) and not result.accepted:
                    self._refused(session, result)
            case "log_piece":
                wire_agent.clean_answer(message.log_piece)
                self.asks.hear(session.node_id, message.log_piece)
            case "benchmark_report":
                wire_agent.clean_answer(message.benchmark_report)
                self.asks.hear(session.node_id, message.benchmark_report)
            case other:
                log.warning(
                    "%s sent %s, which this release does not know", session.node_id, other or "nothing"
                )
        self._heard[session.node_id] = now
        if now.devices is not before.devices:
            self._news += device_news(session.node_id, before.devices, now.devices, now.heard_at)
        if replace(now, heard_at=before.heard_at) != before:
            self._hint()
        if session.unwritten is not None and message.HasField("inventory"):
            async with self._ledger.writing():
                await self.write_inventories()

    def _refused(self, session: Session, result: pb.CommandResult) -> None:
        """The pass says again what is not done; the same refusal again is no news, also between others."""
        log.warning("%s refused command %s: %s", session.node_id, result.command_id, result.message)
        if result.message not in session.refusals and len(session.refusals) < REFUSALS_TOLD:
            session.refusals.add(result.message)
            text = f"refused what it was told: {result.message}"
            event = PutEvent(self._tenure.now(), "command_refused", session.node_id, text, Severity.NOTE)
            self._news.append(event)

    async def write_inventories(self) -> None:
        """What nodes said they have and is not written yet; under the ledger's pen.

        Raises what a commit raises; then it is tried again with the next pass."""
        nodes = self._ledger.stored.nodes
        due = [
            (session, said)
            for session in self._sessions.values()
            if (said := session.unwritten) is not None and session.node_id in nodes
        ]
        rows = [
            replace(
                nodes[session.node_id],
                address=said.address,
                fabrics=said.fabrics,
                pool=said.pool,
                engine_ports=said.engine_ports,
                devices=said.rows(),
            )
            for session, said in due
        ]
        await self._ledger.commit([PutNode(row) for row in rows if row != nodes[row.node_id]])
        for session, said in due:
            if session.unwritten is said:
                session.unwritten = None

    def closed(self, session: Session) -> None:
        """The stream is gone. Only the session that owns the node may say so of it."""
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]
            self._heard[session.node_id] = replace(self._heard[session.node_id], connected=False)
            self.asks.gone(session.node_id)
            self._hint()

    def tell(self, node_id: NodeId, message: pb.ConnectResponse) -> bool:
        """A command to a node; false: it is not connected, and its next Desired repairs what was lost."""
        session = self._sessions.get(node_id)
        if session is None:
            return False
        if message.HasField("start_shard") and not message.start_shard.spec.engine:
            # Its spec cannot be told (`_wanted_shard` has said so), or its model has left meanwhile.
            return False
        message.term = self._tenure.term
        session.outbox.notice(message)
        return True

    def publish(self, stored: Stored) -> None:
        """Hand each connected node its complete Desired if it changed, and forget exits that are settled."""
        for session in self._sessions.values():
            self._publish_to(session, stored)
        exited_there = [
            (node_id, heard)
            for node_id, heard in self._heard.items()
            if any(report.state is ShardState.EXITED for report in heard.shards.values())
        ]
        if not exited_there:
            return
        named = {shard.shard_id for row in stored.replicas.values() for shard in row.shards}
        named.update(stone.shard_id for stone in stored.tombstones)
        for node_id, heard in exited_there:
            kept = {
                shard_id: report
                for shard_id, report in heard.shards.items()
                if report.state is not ShardState.EXITED or shard_id in named
            }
            if len(kept) < len(heard.shards):
                self._heard[node_id] = replace(heard, shards=kept)

    def _welcome_with_desired(self, session: Session) -> None:
        """The Desired that follows Welcome. Before the first reading of a term it comes with the first
        pass."""
        if self._ledger.known:
            self._publish_to(session, self._ledger.stored)

    def _publish_to(self, session: Session, stored: Stored) -> None:
        catalog, seen = self._ledger.catalog, session.seen
        rows = stored.by_node.get(session.node_id, ())
        if seen is not None and seen[0] is rows and seen[1] is catalog and seen[2] is stored.nodes:
            return
        if self._learns() and strangers_of(self._heard[session.node_id], stored):
            return
        session.seen = (rows, catalog, stored.nodes)
        shards = desired_for(session.node_id, stored, catalog)
        heads = (stored.nodes.get(row.shards[0].node_id) for row, _, _ in shards if len(row.shards) > 1)
        addresses = tuple(head.address for head in heads if head is not None)
        source = _Source(shards, catalog, addresses)
        if source == session.source:
            return
        session.source = source
        desired = pb.Desired(
            shards=[told for one in shards if (told := self._wanted_shard(session, one, stored)) is not None]
        )
        text = desired.SerializeToString(deterministic=True)
        if text != session.desired:
            session.desired = text
            session.desired_version += 1
            desired.version = session.desired_version
            session.listed[desired.version] = frozenset(ShardId(one.spec.shard_id) for one in desired.shards)
            session.outbox.state(
                pb.ConnectResponse(term=self._tenure.term, desired=desired), outdates=_follows_from_rows
            )

    def _wanted_shard(self, session: Session, one: DesiredShard, stored: Stored) -> pb.WantedShard | None:
        """None where its spec cannot be told and nothing of it runs: then its start has failed, as if the
        agent had refused it."""
        row, shard, wish = one
        spec, why = self._spec(row, shard, stored)
        if why is not None:
            heard = self._heard[session.node_id]
            report = heard.shards.get(shard.shard_id)
            if report is None:
                log.error("shard %s: %s", shard.shard_id, why)
                ended = exited(row, shard, Exit(None, None, "refused", why))
                shards = {**heard.shards, shard.shard_id: ended}
                self._heard[session.node_id] = replace(heard, shards=shards)
                self._hint()
            if report is None or report.state is ShardState.EXITED:
                return None
        return pb.WantedShard(spec=spec, wish=wire_agent.WISH_TO_WIRE[wish])

    def spec(self, row: ReplicaRow, shard: ShardRow, stored: Stored) -> pb.ShardSpec:
        """What an agent is to know of one shard; without an engine where nothing can be started from it."""
        return self._spec(row, shard, stored)[0]

    def _spec(self, row: ReplicaRow, shard: ShardRow, stored: Stored) -> tuple[pb.ShardSpec, str | None]:
        """And why it cannot be told whole: one model must not silence the leader for all others."""
        model = self._ledger.catalog.models.get(row.model)
        try:
            return wire_agent.shard_spec(row, shard, model, stored.nodes, self._mirror_urls), None
        except (ValueError, TypeError) as e:
            stored_one = model is not None and model.source is Source.STORED
            fix = "llmgwctl model apply FILE" if stored_one else "in the configuration file"
            why = f"model {row.model} cannot be told to its agent: {e}; correct its spec: {fix}"
        return wire_agent.shard_spec(row, shard, None, stored.nodes, self._mirror_urls), why

    def end_all(self, last: Callable[[], pb.ConnectResponse]) -> None:
        """End every session with a last word."""
        self._closed = True
        self.asks.end_all(lambda: Fenced(f"term {self._tenure.term} ended meanwhile"))
        for session in self._sessions.values():
            message = last()
            message.term = self._tenure.term
            session.outbox.end(message)

    def _reject(self, code: str, text: str) -> pb.ConnectResponse:
        return pb.ConnectResponse(term=self._tenure.term, reject=pb.Reject(code=code, text=text))


def _follows_from_rows(message: pb.ConnectResponse) -> bool:
    """A Start that waits while its shard is given up would put an engine on devices that are another's."""
    return message.WhichOneof("body") in ("start_shard", "drain_shard", "stop_shard")


def _observed(session: Session, heard: NodeHeard, status: pb.ShardStatus) -> NodeHeard:
    """What changed; or all there is, with the shards of the Desired that was applied before."""
    reports = wire_agent.shard_reports(status.shards)
    listed = session.listed.get(status.complete_after) if status.HasField("complete_after") else None
    if listed is None:
        return replace(heard, shards={**heard.shards, **reports})
    for version in [one for one in session.listed if one < status.complete_after]:
        del session.listed[version]
    # An exit stays seen: what was told once is forgotten there, and what never came so far was never there.
    exited = {key: one for key, one in heard.shards.items() if one.state is ShardState.EXITED}
    return replace(heard, shards={**exited, **reports}, answered=listed)


def _updated(heard: NodeHeard, health: pb.DeviceHealth) -> tuple[DeviceReport, ...]:
    changed = {device.device_id: device for device in wire_agent.devices(health.devices)}
    return tuple(changed.get(device.device_id, device) for device in heard.devices)
