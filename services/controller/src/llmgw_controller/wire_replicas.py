"""The view's models and replicas to llmgw.v1.operator, and how idle each is."""

from collections.abc import Iterable

from llmgw.v1 import agent_pb2 as agent
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.activity import Busy, Idle, Unknown, Verdict
from llmgw_controller.core.heard import Exit, ShardReport
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.view import ModelLine, ReplicaLine, ShardLine
from llmgw_controller.wire_agent import SHARD_STATE_TO_WIRE
from llmgw_controller.wire_routing import AVAILABILITY_TO_WIRE
from llmgw_kit.ids import ShardId

_PHASE = {
    Phase.WANTED: pb.REPLICA_PHASE_WANTED,
    Phase.RESERVED: pb.REPLICA_PHASE_RESERVED,
    Phase.STARTING: pb.REPLICA_PHASE_STARTING,
    Phase.READY: pb.REPLICA_PHASE_READY,
    Phase.DRAINING: pb.REPLICA_PHASE_DRAINING,
    Phase.STOPPING: pb.REPLICA_PHASE_STOPPING,
    Phase.STOPPED: pb.REPLICA_PHASE_STOPPED,
    Phase.UNPLACEABLE: pb.REPLICA_PHASE_UNPLACEABLE,
    Phase.BACKOFF: pb.REPLICA_PHASE_BACKOFF,
    Phase.FAILED: pb.REPLICA_PHASE_FAILED,
}


def model(line: ModelLine, at: float) -> pb.ModelRow:
    """One model of the catalog."""
    return pb.ModelRow(
        model=line.model,
        aliases=list(line.aliases),
        availability=AVAILABILITY_TO_WIRE[line.availability],
        wanted=line.wanted,
        ready=line.ready,
        starting=line.starting,
        gpus=line.gpus,
        held=line.held,
        source=line.source.value,
        profiles=list(line.profiles),
        stopped=line.stopped,
        pinned=line.pinned,
        reason=line.reason,
        in_flight=line.in_flight,
        last_asked_unix_s=line.last_asked_at,
        eta_s=line.eta_s,
        created_unix_s=line.created_at,
        idleness=idleness(line.verdict, at) if line.verdict is not None else None,
    )


class ToldShards:
    """Shards as they were told last, as bytes: most have not moved since, and to put one into a message again
    takes a fifth of making it."""

    def __init__(self) -> None:
        self._known: dict[ShardId, tuple[ShardLine, bytes]] = {}

    def of(self, line: ShardLine) -> bytes:
        """As bytes of a ShardRow."""
        known = self._known.get(line.shard.shard_id)
        if known is None or known[0] is not line:
            known = self._known[line.shard.shard_id] = (line, _shard(line).SerializeToString())
        return known[1]

    @property
    def kept(self) -> int:
        """Shards."""
        return len(self._known)

    def forget_all_but(self, lines: Iterable[ReplicaLine]) -> None:
        """What is gone is not told again. Seldom, or it would cost what it saves."""
        there = {one.shard.shard_id for line in lines for one in line.shards}
        if len(self._known) > 2 * len(there):
            self._known = {}


def replica(line: ReplicaLine, at: float, told: ToldShards | None = None) -> pb.ReplicaRow:
    """One replica with its shards."""
    row, told = line.row, told or ToldShards()
    message = pb.ReplicaRow(
        replica_id=row.replica_id,
        model=row.model,
        profile=row.profile,
        phase=_PHASE[row.phase],
        unreachable=line.unreachable,
        gpus=line.gpus,
        group_epoch=row.group_epoch,
        restarts=row.failures,
        cause=row.cause.value,
        reason=row.reason,
        until_unix_s=row.until,
        in_flight=line.in_flight,
        last_asked_unix_s=line.last_asked_at,
        progress=line.progress,
        ready_since_unix_s=row.ready_since,
        url=line.url,
        probe_error=line.probe_error,
        stalled_s=line.stalled_s,
        idleness=idleness(line.verdict, at) if line.verdict is not None else None,
    )
    for one in line.shards:
        message.shards.add().MergeFromString(told.of(one))
    return message


def _shard(line: ShardLine) -> pb.ShardRow:
    return pb.ShardRow(
        shard_id=line.shard.shard_id,
        node_id=line.shard.node_id,
        device_ids=list(line.shard.device_ids),
        ports=dict(line.shard.ports),
        observed=_observed(line.report) if line.report is not None else None,
    )


def _observed(report: ShardReport) -> agent.ObservedShard:
    return agent.ObservedShard(
        shard_id=report.shard_id,
        replica_id=report.replica_id,
        group_epoch=report.group_epoch,
        spec_hash=report.spec_hash,
        state=SHARD_STATE_TO_WIRE[report.state],
        ports=dict(report.ports),
        device_ids=list(report.device_ids),
        probed=report.probed,
        adopted=report.adopted,
        pid=report.pid,
        pid_start_ticks=report.pid_start_ticks,
        progress=report.progress,
        running_requests=report.running,
        running_unknown_reason=report.running_unknown,
        load_s=report.load_s,
        exit=_exit(report.exit) if report.exit is not None else None,
    )


def _exit(one: Exit) -> agent.ShardExit:
    return agent.ShardExit(code=one.code, signal=one.signal, reason=one.reason, message=one.message)


def idleness(verdict: Verdict, at: float) -> pb.Idleness:
    """Busy, idle since, or unknown why."""
    match verdict:
        case Busy(_, direct_traffic):
            return pb.Idleness(kind=pb.IDLENESS_KIND_BUSY, direct_traffic=direct_traffic)
        case Idle(for_s, never_asked):
            return pb.Idleness(kind=pb.IDLENESS_KIND_IDLE, since_unix_s=at - for_s, never_asked=never_asked)
        case Unknown(reason):
            return pb.Idleness(kind=pb.IDLENESS_KIND_UNKNOWN, unknown_reason=reason)
