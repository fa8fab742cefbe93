"""The view's nodes and devices to llmgw.v1.operator."""

from llmgw.v1 import agent_pb2 as agent
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.capacity import DeviceLine, Part
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.state import DeviceFault, FaultClass, ForeignProcess, Schedulability
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
