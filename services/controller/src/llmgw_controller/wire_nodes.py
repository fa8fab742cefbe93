"""The view's nodes and devices to llmgw.v1.operator."""

from llmgw.v1 import agent_pb2 as agent
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.capacity import DeviceLine, Part
from llmgw_controller.core.heard import DeviceFault, DeviceReport, FaultClass, ForeignProcess
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.rows import Schedulability
from llmgw_controller.core.view import NodeLine
from llmgw_controller.wire_agent import DEVICE_STATE_TO_WIRE
from llmgw_controller.wire_replicas import idleness

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


def node(line: NodeLine, at: float) -> pb.NodeRow:
    """One node with its devices."""
    return pb.NodeRow(
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
        beat_age_s=line.beat_age_s,
        pool=line.pool,
        disk_free_bytes=line.disk_free_bytes,
        reason=line.reason,
    )


def device(line: DeviceLine, at: float) -> pb.DeviceRow:
    """One device and its one use."""
    found = line.device
    message = agent.Device(
        device_id=found.device_id,
        index=found.index,
        gpu_class=found.gpu_class,
        memory_total_bytes=found.memory_total_bytes,
    )
    if found.report is not None:
        message.MergeFrom(_report(found.report))
    return pb.DeviceRow(
        node_id=found.node_id,
        device=message,
        use=USE_TO_WIRE[line.part],
        replica_id=found.replica_id,
        idleness=idleness(line.verdict, at) if line.verdict is not None else None,
    )


def _report(report: DeviceReport) -> agent.Device:
    """What its agent says now; who it is, the rows know also without."""
    return agent.Device(
        vendor=report.vendor,
        state=DEVICE_STATE_TO_WIRE[report.state],
        memory_used_bytes=report.memory_used_bytes,
        foreign_used_bytes=report.foreign_used_bytes,
        temperature_celsius=report.temperature_celsius,
        power_watts=report.power_watts,
        driver_version=report.driver_version,
        reason=report.reason,
        since_unix_s=report.since,
        fault=_fault(report.fault) if report.fault is not None else None,
        foreign=[_foreign(one) for one in report.foreign],
        notes=list(report.notes),
    )


def _fault(one: DeviceFault) -> agent.DeviceFault:
    return agent.DeviceFault(
        fault_class=_FAULT[one.fault_class], reason=one.reason, text=one.text, at_unix_s=one.at
    )


def _foreign(one: ForeignProcess) -> agent.ForeignProcess:
    return agent.ForeignProcess(pid=one.pid, name=one.name, user=one.user, memory_bytes=one.memory_bytes)
