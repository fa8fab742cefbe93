"""Protocol enums as the words the tables and the JSON use."""

from llmgw.v1 import agent_pb2, operator_pb2, routing_pb2


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def phase(row: operator_pb2.ReplicaRow) -> str:
    """`ready`, `UNPLACEABLE`: what needs somebody is in capitals."""
    if row.unreachable:
        return "unreachable"
    word = _word(operator_pb2.ReplicaPhase.Name(row.phase), "REPLICA_PHASE_")
    if word == "starting" and row.HasField("progress"):
        return f"starting {row.progress * 100:.0f} %"
    if word == "backoff" and not row.restarts:
        return "waits"
    return word.upper() if word in ("unplaceable", "failed", "backoff") else word


def phase_name(row: operator_pb2.ReplicaRow) -> str:
    """For JSON: `READY`."""
    return operator_pb2.ReplicaPhase.Name(row.phase).removeprefix("REPLICA_PHASE_")


def node_state(row: operator_pb2.NodeRow) -> str:
    word = _word(operator_pb2.NodeState.Name(row.state), "NODE_STATE_")
    if word in ("unreachable", "lost"):
        return word.upper()
    if row.schedulability in (operator_pb2.SCHEDULABILITY_CORDONED, operator_pb2.SCHEDULABILITY_DRAINING):
        return _word(operator_pb2.Schedulability.Name(row.schedulability), "SCHEDULABILITY_")
    return word


def device_state(device: agent_pb2.Device) -> str:
    return _word(agent_pb2.DeviceState.Name(device.state), "DEVICE_STATE_")


def shown_use(row: operator_pb2.DeviceRow) -> str:
    """Its part of the bar; of the unhealthy ones, whether it is there at all."""
    if row.use == operator_pb2.DEVICE_USE_UNHEALTHY:
        return "unhealthy" if row.device.state == agent_pb2.DEVICE_STATE_UNHEALTHY else "missing"
    return _word(operator_pb2.DeviceUse.Name(row.use), "DEVICE_USE_")


def fault(value: agent_pb2.DeviceFault) -> str:
    """`xid_79: fallen off the bus`."""
    return f"{value.reason}: {value.text}" if value.text and value.text != value.reason else value.reason


def process(value: agent_pb2.ForeignProcess) -> str:
    """`31.2 GiB by pid 48211 (python, mkraus)`."""
    who = ", ".join(part for part in (value.name, value.user) if part)
    held = f"{value.memory_bytes / 1024**3:.1f} GiB by " if value.HasField("memory_bytes") else ""
    return f"{held}pid {value.pid}" + (f" ({who})" if who else "")


def shard_state(shard: operator_pb2.ShardRow) -> str:
    """As last heard; `-` when no agent has spoken of it."""
    if not shard.HasField("observed"):
        return "-"
    return _word(agent_pb2.ShardState.Name(shard.observed.state), "SHARD_STATE_")


def availability(value: "routing_pb2.ModelAvailability.ValueType") -> str:
    return _word(routing_pb2.ModelAvailability.Name(value), "MODEL_AVAILABILITY_")


def idleness(value: operator_pb2.Idleness) -> str:
    """`busy`, `idle` or `unknown`."""
    return _word(operator_pb2.IdlenessKind.Name(value.kind), "IDLENESS_KIND_")


def verdict(value: "operator_pb2.WhyVerdict.ValueType") -> str:
    return _word(operator_pb2.WhyVerdict.Name(value), "WHY_VERDICT_")


def severity(value: "operator_pb2.TroubleSeverity.ValueType") -> str:
    word = _word(operator_pb2.TroubleSeverity.Name(value), "TROUBLE_SEVERITY_")
    return "info" if word == "unspecified" else word


def mark(value: "operator_pb2.TroubleSeverity.ValueType") -> tuple[str, str]:
    """`!!` in red, ` *`, or two blanks."""
    if value == operator_pb2.TROUBLE_SEVERITY_TROUBLE:
        return ("!!", "bold red")
    return (" *", "") if value == operator_pb2.TROUBLE_SEVERITY_NOTE else ("  ", "")


def unknown_reason(reason: str) -> str:
    """`router_silent` as people say it."""
    return reason.replace("_", " ")


_KEPT = {"residency": "young", "asked_for": "waited for", "budget": "enough this hour"}


def kept(reason: str) -> str:
    """Why an idle replica is not let go, in a word or two."""
    return _KEPT.get(reason, reason.replace("_", " "))
