"""The view of the fleet to llmgw.v1.operator, in this one place; every message is filled from one
FleetView."""

from collections.abc import Sequence

from llmgw.v1 import agent_pb2 as agent
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_room
from llmgw_controller.core.activity import Busy, Idle, Unknown, Verdict
from llmgw_controller.core.capacity import ClassCapacity, DeviceLine, Part, Parts
from llmgw_controller.core.fabrics import FabricLine, LargestFit
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.risk import NodeLossRisk
from llmgw_controller.core.state import (
    DeviceFault,
    FaultClass,
    ForeignProcess,
    Phase,
    Schedulability,
    ShardReport,
)
from llmgw_controller.core.trouble import Trouble
from llmgw_controller.core.view import FleetView, ModelLine, NodeLine, ReplicaLine, ShardLine
from llmgw_controller.ports import EventRow
from llmgw_controller.wire_agent import DEVICE_STATE_TO_WIRE, SHARD_STATE_TO_WIRE
from llmgw_controller.wire_routing import AVAILABILITY_TO_WIRE

_NODE_STATE = {
    NodeState.ENROLLED: pb.NODE_STATE_ENROLLED,
    NodeState.READY: pb.NODE_STATE_READY,
    NodeState.UNREACHABLE: pb.NODE_STATE_UNREACHABLE,
    NodeState.LOST: pb.NODE_STATE_LOST,
}
_SCHEDULABILITY = {
    Schedulability.SCHEDULABLE: pb.SCHEDULABILITY_SCHEDULABLE,
    Schedulability.CORDONED: pb.SCHEDULABILITY_CORDONED,
    Schedulability.DRAINING: pb.SCHEDULABILITY_DRAINING,
}
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
USE_TO_WIRE = {
    Part.BUSY: pb.DEVICE_USE_BUSY,
    Part.IDLE: pb.DEVICE_USE_IDLE,
    Part.UNKNOWN: pb.DEVICE_USE_UNKNOWN,
    Part.STARTING: pb.DEVICE_USE_STARTING,
    Part.UNHEALTHY: pb.DEVICE_USE_UNHEALTHY,
    Part.FOREIGN: pb.DEVICE_USE_FOREIGN,
    Part.CORDONED: pb.DEVICE_USE_CORDONED,
    Part.FREE: pb.DEVICE_USE_FREE,
}
_FAULT = {
    FaultClass.APP: agent.FAULT_CLASS_APP,
    FaultClass.SUSPECT: agent.FAULT_CLASS_SUSPECT,
    FaultClass.FATAL: agent.FAULT_CLASS_FATAL,
}
#: INFO is no trouble at all: an event of that kind leaves the field unset.
SEVERITY_TO_WIRE = {
    Severity.TROUBLE: pb.TROUBLE_SEVERITY_TROUBLE,
    Severity.NOTE: pb.TROUBLE_SEVERITY_NOTE,
    Severity.INFO: pb.TROUBLE_SEVERITY_UNSPECIFIED,
}


def info(view: FleetView, *, cluster: str, leader_name: str, store: str, rows_age_s: float) -> pb.ViewInfo:
    """First on every view. The age is that of the oldest part: the rows, or a beat."""
    return pb.ViewInfo(
        cluster=cluster,
        at_unix_s=view.at,
        age_s=max(view.age_s, rows_age_s),
        leader_name=leader_name,
        term=view.term,
        store=store,
        learning=view.learning,
    )


def status(
    view: FleetView, about: pb.ViewInfo, risks: Sequence[NodeLossRisk] | None = None
) -> pb.GetStatusResponse:
    """Everything of one moment; `risks` may be some seconds older, and None: not looked for."""
    message = pb.GetStatusResponse(
        info=about,
        trouble=[_trouble(one) for one in view.trouble],
        capacity=[_capacity(one) for one in view.capacity],
        fabrics=[_fabric(one) for one in view.fabrics],
        nodes=pb.NodeCounts(
            heard=view.node_counts.heard, silent=view.node_counts.silent, lost=view.node_counts.lost
        ),
        routers=pb.RouterCounts(members=view.router_counts.members, heard=view.router_counts.heard),
        models=[model(one, view.at) for one in view.models],
        replicas=[replica(one, view.at) for one in view.replicas],
        brake=view.brake,
        risks=[_risk(one) for one in risks or ()],
        risks_known=risks is not None,
        nobody_asked=[wire_room.holding(one) for one in view.holdings.idle],
        suggestions=[wire_room.proposal(one) for one in view.proposals],
    )
    if view.router_counts.oldest_report_s is not None:
        message.routers.oldest_report_s = view.router_counts.oldest_report_s
    return message


def _trouble(one: Trouble) -> pb.Trouble:
    message = pb.Trouble(
        severity=SEVERITY_TO_WIRE[one.severity], kind=one.kind, subject=one.subject, text=one.text
    )
    if one.since is not None:
        message.since_unix_s = one.since
    if one.fix is not None:
        message.fix = one.fix
    return message


def _capacity(one: ClassCapacity) -> pb.ClassCapacity:
    message = pb.ClassCapacity(gpu_class=one.gpu_class, total=one.total, parts=_parts(one.parts))
    if one.memory_total_bytes is not None:
        message.memory_total_bytes = one.memory_total_bytes
    if one.memory_free_bytes is not None:
        message.memory_free_bytes = one.memory_free_bytes
    return message


def _parts(parts: Parts) -> pb.DeviceParts:
    return pb.DeviceParts(**{part.value: getattr(parts, part.value) for part in Part})


def _fabric(one: FabricLine) -> pb.FabricRow:
    message = pb.FabricRow(
        fabric=one.fabric,
        nodes=one.nodes,
        whole_free=one.whole_free,
        whole_free_if_idle_left=one.whole_free_if_idle_left,
        gpu_classes=list(one.gpu_classes),
    )
    if one.largest_fit is not None:
        message.largest_fit.CopyFrom(_fit_of(one.largest_fit))
    if one.largest_fit_if_idle_left is not None:
        message.largest_fit_if_idle_left.CopyFrom(_fit_of(one.largest_fit_if_idle_left))
    return message


def _fit_of(one: LargestFit) -> pb.LargestFit:
    return pb.LargestFit(nodes=one.nodes, gpus_per_node=one.gpus_per_node, gpu_class=one.gpu_class)


def _risk(one: NodeLossRisk) -> pb.NodeLossRisk:
    return pb.NodeLossRisk(node_id=one.node_id, homeless_replica_ids=list(one.homeless), text=one.text)


def node(line: NodeLine, at: float) -> pb.NodeRow:
    """One node with its devices."""
    message = pb.NodeRow(
        node_id=line.node_id,
        state=_NODE_STATE[line.state],
        schedulability=_SCHEDULABILITY[line.schedulability],
        fabrics=list(line.fabrics),
        devices=[device(one, at) for one in line.devices],
        replica_ids=list(line.replica_ids),
        version=line.version,
        address=line.address,
        weights=[
            agent.HeldWeights(
                model=one.model, version=one.version, bytes=one.size_bytes, complete=one.complete
            )
            for one in line.weights
        ],
    )
    if line.beat_age_s is not None:
        message.beat_age_s = line.beat_age_s
    if line.pool is not None:
        message.pool = line.pool
    if line.disk_free_bytes is not None:
        message.disk_free_bytes = line.disk_free_bytes
    if line.reason is not None:
        message.reason = line.reason
    return message


def device(line: DeviceLine, at: float) -> pb.DeviceRow:
    """One device and its one use."""
    found = line.device
    message = pb.DeviceRow(
        node_id=found.node_id,
        device=agent.Device(device_id=found.device_id, index=found.index, gpu_class=found.gpu_class),
        use=USE_TO_WIRE[line.part],
    )
    if found.memory_total_bytes is not None:
        message.device.memory_total_bytes = found.memory_total_bytes
    if found.replica_id is not None:
        message.replica_id = found.replica_id
    if line.verdict is not None:
        message.idleness.CopyFrom(idleness(line.verdict, at))
    if found.report is not None:
        report = found.report
        message.device.vendor = report.vendor
        message.device.state = DEVICE_STATE_TO_WIRE[report.state]
        for name in (
            "memory_used_bytes", "foreign_used_bytes", "temperature_celsius", "power_watts", "driver_version",
            "reason",
        ):  # fmt: skip
            value = getattr(report, name)
            if value is not None:
                setattr(message.device, name, value)
        if report.since is not None:
            message.device.since_unix_s = report.since
        if report.fault is not None:
            message.device.fault.CopyFrom(_fault(report.fault))
        message.device.foreign.extend(_foreign(one) for one in report.foreign)
        message.device.notes.extend(report.notes)
    return message


def _fault(one: DeviceFault) -> agent.DeviceFault:
    return agent.DeviceFault(
        fault_class=_FAULT[one.fault_class], reason=one.reason, text=one.text, at_unix_s=one.at
    )


def _foreign(one: ForeignProcess) -> agent.ForeignProcess:
    message = agent.ForeignProcess(pid=one.pid, name=one.name, user=one.user)
    if one.memory_bytes is not None:
        message.memory_bytes = one.memory_bytes
    return message


def idleness(verdict: Verdict, at: float) -> pb.Idleness:
    """Busy, idle since, or unknown why."""
    match verdict:
        case Busy(_, direct_traffic):
            return pb.Idleness(kind=pb.IDLENESS_KIND_BUSY, direct_traffic=direct_traffic)
        case Idle(for_s, never_asked):
            return pb.Idleness(kind=pb.IDLENESS_KIND_IDLE, since_unix_s=at - for_s, never_asked=never_asked)
        case Unknown(reason):
            return pb.Idleness(kind=pb.IDLENESS_KIND_UNKNOWN, unknown_reason=reason)


def replica(line: ReplicaLine, at: float) -> pb.ReplicaRow:
    """One replica with its shards."""
    row = line.row
    message = pb.ReplicaRow(
        replica_id=row.replica_id,
        model=row.model,
        profile=row.profile,
        phase=_PHASE[row.phase],
        unreachable=line.unreachable,
        shards=[_shard(one) for one in line.shards],
        gpus=line.gpus,
        group_epoch=row.group_epoch,
        restarts=row.failures,
        cause=row.cause.value,
    )
    optional = {
        "reason": row.reason,
        "until_unix_s": row.until,
        "in_flight": line.in_flight,
        "last_asked_unix_s": line.last_asked_at,
        "progress": line.progress,
        "ready_since_unix_s": row.ready_since,
        "url": line.url,
        "probe_error": line.probe_error,
        "stalled_s": line.stalled_s,
    }
    for name, value in optional.items():
        if value is not None:
            setattr(message, name, value)
    if line.verdict is not None:
        message.idleness.CopyFrom(idleness(line.verdict, at))
    return message


def _shard(line: ShardLine) -> pb.ShardRow:
    message = pb.ShardRow(
        shard_id=line.shard.shard_id,
        node_id=line.shard.node_id,
        device_ids=list(line.shard.device_ids),
        ports=dict(line.shard.ports),
    )
    if line.report is not None:
        message.observed.CopyFrom(_observed(line.report))
    return message


def _observed(report: ShardReport) -> agent.ObservedShard:
    message = agent.ObservedShard(
        shard_id=report.shard_id,
        replica_id=report.replica_id,
        group_epoch=report.group_epoch,
        spec_hash=report.spec_hash,
        state=SHARD_STATE_TO_WIRE[report.state],
        ports=dict(report.ports),
        device_ids=list(report.device_ids),
        probed=report.probed,
        adopted=report.adopted,
    )
    optional = {
        "pid": report.pid,
        "pid_start_ticks": report.pid_start_ticks,
        "progress": report.progress,
        "running_requests": report.running,
        "running_unknown_reason": report.running_unknown,
        "load_s": report.load_s,
    }
    for name, value in optional.items():
        if value is not None:
            setattr(message, name, value)
    if report.exit is not None:
        message.exit.reason = report.exit.reason
        message.exit.message = report.exit.message
        if report.exit.code is not None:
            message.exit.code = report.exit.code
        if report.exit.signal is not None:
            message.exit.signal = report.exit.signal
    return message


def model(line: ModelLine, at: float) -> pb.ModelRow:
    """One model of the catalog."""
    message = pb.ModelRow(
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
    )
    optional = {
        "reason": line.reason,
        "in_flight": line.in_flight,
        "last_asked_unix_s": line.last_asked_at,
        "eta_s": line.eta_s,
        "created_unix_s": line.created_at,
    }
    for name, value in optional.items():
        if value is not None:
            setattr(message, name, value)
    if line.verdict is not None:
        message.idleness.CopyFrom(idleness(line.verdict, at))
    return message


def event(row: EventRow) -> pb.Event:
    """One line of the log."""
    return pb.Event(
        event_id=row.event_id,
        at_unix_s=row.at,
        term=row.term,
        kind=row.kind,
        subject=row.subject,
        text=row.text,
        severity=SEVERITY_TO_WIRE[row.severity],
    )
