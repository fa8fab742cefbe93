"""What agents say and are told: llmgw.v1.agent to core types and back, in this one place."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from llmgw.v1 import agent_pb2 as pb
from llmgw_controller.core.heard import (
    DeviceFault,
    DeviceReport,
    DeviceState,
    Exit,
    FaultClass,
    ForeignProcess,
    HeldWeights,
    ShardReport,
    ShardState,
)
from llmgw_controller.core.rows import DeviceRow, Wish
from llmgw_controller.wire_spec import shard_spec as shard_spec
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import DeviceId, NodeId, ReplicaId, ShardId
from llmgw_kit.text import is_name, printable

_SHARD_STATE = {
    pb.SHARD_STATE_FETCHING: ShardState.FETCHING,
    pb.SHARD_STATE_VERIFYING: ShardState.VERIFYING,
    pb.SHARD_STATE_LAUNCHING: ShardState.LAUNCHING,
    pb.SHARD_STATE_LOADING: ShardState.LOADING,
    pb.SHARD_STATE_SERVING: ShardState.SERVING,
    pb.SHARD_STATE_DRAINING: ShardState.DRAINING,
    pb.SHARD_STATE_STOPPING: ShardState.STOPPING,
    pb.SHARD_STATE_EXITED: ShardState.EXITED,
}
SHARD_STATE_TO_WIRE = {core: wire for wire, core in _SHARD_STATE.items()}
_FAULT_CLASS = {
    pb.FAULT_CLASS_APP: FaultClass.APP,
    pb.FAULT_CLASS_SUSPECT: FaultClass.SUSPECT,
    pb.FAULT_CLASS_FATAL: FaultClass.FATAL,
}
_DEVICE_STATE = {
    pb.DEVICE_STATE_HEALTHY: DeviceState.HEALTHY,
    pb.DEVICE_STATE_UNHEALTHY: DeviceState.UNHEALTHY,
    pb.DEVICE_STATE_MISSING: DeviceState.MISSING,
}
DEVICE_STATE_TO_WIRE = {core: wire for wire, core in _DEVICE_STATE.items()}
WISH_TO_WIRE = {
    Wish.SERVE: pb.SHARD_WISH_RUN,
    Wish.DRAIN: pb.SHARD_WISH_DRAIN,
    Wish.STOP: pb.SHARD_WISH_STOP,
}


#: Characters of a name: longer than any host name, device id or shard id is.
NAME_MOST = 300
#: Of a text: it stands in a row of a table, or in an event.
TEXT_MOST = 1000
#: Of what an engine said last, some lines.
LAST_WORDS_MOST = 4000
#: Bytes that no device has: drivers say "not available" with all bits set, and no row holds that.
SIZE_MOST = 2**53
#: Of an index or an epoch: what a row holds of each.
INDEX_MOST, EPOCH_MOST = 2**31 - 1, 2**53


@dataclass(frozen=True)
class Inventory:
    """What a node has, as its agent says."""

    address: str
    devices: tuple[DeviceReport, ...]
    fabrics: tuple[str, ...]
    pool: str | None
    engine_ports: tuple[int, int] | None
    engines: tuple[str, ...]
    disk_free_bytes: int | None

    def rows(self) -> tuple[DeviceRow, ...]:
        """What outlives the session."""
        return tuple(
            DeviceRow(device.device_id, device.index, device.gpu_class, device.memory_total_bytes)
            for device in self.devices
        )


@dataclass(frozen=True)
class Hello:
    """An agent's first word on a stream."""

    node_id: NodeId
    boot_id: str
    agent_instance: str
    version: str
    highest_term_seen: int | None
    inventory: Inventory
    shards: dict[ShardId, ShardReport]
    weights: tuple[HeldWeights, ...]
    #: Its complete reports say which Desired they follow.
    tells_applied: bool


def _name(given: str, what: str, *, code: str = "invalid_inventory") -> str:
    """A name goes into rows, commands and pages as it is: it is refused where it cannot, never changed."""
    if not is_name(given, most=NAME_MOST):
        raise InvalidRequest(
            f"{what} {printable(given)[:100]!r} is no name; expected 1 to {NAME_MOST} printable characters "
            "on one line, with no blank at either end",
            code=code,
        )
    return given


def _text(given: str, most: int = TEXT_MOST) -> str:
    """What people or programs wrote on a node."""
    return printable(given, most=most)


def hello(message: pb.Hello) -> Hello:
    """Raises InvalidRequest naming what is missing or makes no sense."""
    for name in ("node_id", "boot_id", "agent_instance"):
        if not getattr(message, name):
            raise InvalidRequest(f"Hello without {name}", code="invalid_hello")
        _name(getattr(message, name), name, code="invalid_hello")
    return Hello(
        node_id=NodeId(message.node_id),
        boot_id=message.boot_id,
        agent_instance=message.agent_instance,
        version=_text(message.version),
        highest_term_seen=message.highest_term_seen if message.HasField("highest_term_seen") else None,
        inventory=inventory(message.inventory),
        shards=shard_reports(message.shards),
        weights=held_weights(message.weights),
        tells_applied=message.tells_applied,
    )


def inventory(message: pb.Inventory) -> Inventory:
    """Raises InvalidRequest for doubled devices and impossible ports."""
    ports = None
    if message.HasField("engine_ports"):
        ports = (message.engine_ports.first, message.engine_ports.last)
        if not 1 <= ports[0] <= ports[1] <= 65535:
            raise InvalidRequest(f"engine ports {ports[0]}-{ports[1]} are no range", code="invalid_inventory")
    if not message.management_address:
        raise InvalidRequest(
            "Inventory without management_address: routers could not reach its engines",
            code="invalid_inventory",
        )
    return Inventory(
        address=_name(message.management_address, "management_address"),
        devices=devices(message.devices),
        fabrics=tuple(sorted({_name(fabric, "fabric") for fabric in message.fabrics})),
        pool=_name(message.pool, "pool") if message.pool else None,
        engine_ports=ports,
        engines=tuple(sorted({_text(engine) for engine in message.engines})),
        disk_free_bytes=message.disk_free_bytes if message.HasField("disk_free_bytes") else None,
    )


def devices(messages: Sequence[pb.Device]) -> tuple[DeviceReport, ...]:
    """By index. Raises InvalidRequest for a doubled or nameless device and for a state nobody knows."""
    found = tuple(
        sorted((_device(message) for message in messages), key=lambda one: (one.index, one.device_id))
    )
    names = [device.device_id for device in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"device {twice[0]!r} is reported twice", code="invalid_inventory")
    return found


def _device(message: pb.Device) -> DeviceReport:
    state = _DEVICE_STATE.get(message.state)
    if state is None or not message.device_id or not message.gpu_class or message.index > INDEX_MOST:
        raise InvalidRequest(
            f"device {message.device_id!r} lacks its id, class, state or index", code="invalid_inventory"
        )
    optional = _optional(
        message,
        "memory_total_bytes", "memory_used_bytes", "foreign_used_bytes", "temperature_celsius", "power_watts",
        "driver_version", "reason",
    )  # fmt: skip
    return DeviceReport(
        device_id=DeviceId(_name(message.device_id, "device_id")),
        index=message.index,
        gpu_class=_name(message.gpu_class, "gpu_class"),
        vendor=_text(message.vendor),
        state=state,
        since=message.since_unix_s if message.HasField("since_unix_s") else None,
        fault=_fault(message.fault) if message.HasField("fault") else None,
        foreign=tuple(
            ForeignProcess(
                one.pid,
                _text(one.name),
                _text(one.user),
                one.memory_bytes if one.HasField("memory_bytes") else None,
            )
            for one in message.foreign
        ),
        notes=tuple(_text(note) for note in message.notes),
        **optional,
    )


def _optional(message: Any, *names: str) -> dict[str, Any]:
    """Fields by name, absent ones and readings that cannot be as None, texts made printable."""
    given = {name: getattr(message, name) if message.HasField(name) else None for name in names}
    return {name: _reading(name, value) for name, value in given.items()}


def _reading(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if value is None or (name.endswith("_bytes") and value > SIZE_MOST):
        return None
    return None if name.endswith("_s") and not 0.0 <= value < inf else value


def _fault(message: pb.DeviceFault) -> DeviceFault:
    fault_class = _FAULT_CLASS.get(message.fault_class)
    if fault_class is None or not message.reason:
        raise InvalidRequest("a device's fault lacks its class or reason", code="invalid_inventory")
    return DeviceFault(fault_class, _text(message.reason), _text(message.text), message.at_unix_s)


def shard_reports(messages: Sequence[pb.ObservedShard]) -> dict[ShardId, ShardReport]:
    """By shard id. Raises InvalidRequest for a nameless shard or a state nobody knows."""
    return {ShardId(message.shard_id): _shard(message) for message in messages}


def _shard(message: pb.ObservedShard) -> ShardReport:
    state = _SHARD_STATE.get(message.state)
    if state is None or not message.shard_id or not message.replica_id or message.group_epoch > EPOCH_MOST:
        raise InvalidRequest(
            f"shard {message.shard_id!r} lacks its id, replica, state or epoch", code="invalid_shard_status"
        )
    code = "invalid_shard_status"
    optional = _optional(
        message,
        "pid", "pid_start_ticks", "progress", "load_s", "probe_error", "stalled_s", "fetch_s", "warm_up_s",
        "engine_version", "credential",
    )  # fmt: skip
    end = message.exit if message.HasField("exit") else None
    return ShardReport(
        shard_id=ShardId(_name(message.shard_id, "shard_id", code=code)),
        replica_id=ReplicaId(_name(message.replica_id, "replica_id", code=code)),
        group_epoch=message.group_epoch,
        spec_hash=_text(message.spec_hash),
        state=state,
        exit=None if end is None else _exit(end),
        ports=tuple(sorted(_port(name, port) for name, port in message.ports.items())),
        device_ids=tuple(DeviceId(_name(device, "device_id", code=code)) for device in message.device_ids),
        probed=message.probed,
        running=message.running_requests if message.HasField("running_requests") else None,
        running_unknown=_text(message.running_unknown_reason)
        if message.HasField("running_unknown_reason")
        else None,
        adopted=message.adopted,
        memory_used_bytes=tuple(
            sorted(
                (DeviceId(_text(name)), used)
                for name, used in message.memory_used_bytes.items()
                if used <= SIZE_MOST
            )
        ),
        **optional,
    )


def _port(name: str, port: int) -> tuple[str, int]:
    if not 1 <= port <= 65535:
        raise InvalidRequest(f"port {port} ({printable(name)[:100]}) is none", code="invalid_shard_status")
    return _name(name, "port", code="invalid_shard_status"), port


def _exit(message: pb.ShardExit) -> Exit:
    return Exit(
        code=message.code if message.HasField("code") else None,
        signal=message.signal if message.HasField("signal") else None,
        reason=_text(message.reason),
        message=_text(message.message, LAST_WORDS_MOST),
    )


def held_weights(messages: Sequence[pb.HeldWeights]) -> tuple[HeldWeights, ...]:
    """By name."""
    return tuple(
        HeldWeights(
            _text(message.model),
            _text(message.version),
            message.bytes,
            message.complete,
            fetching=message.fetching,
            progress=message.progress if message.HasField("progress") else None,
            error=_text(message.error) if message.HasField("error") else None,
            shard_ids=tuple(ShardId(_text(name)) for name in message.shard_ids),
        )
        for message in sorted(messages, key=lambda one: (one.model, one.version))
    )


def clean_answer(reply: pb.CommandResult | pb.LogPiece | pb.BenchmarkReport) -> None:
    """Make what a node answers in words printable, in place. The bytes of a log stay what they are."""
    match reply:
        case pb.CommandResult():
            reply.message = _text(reply.message, LAST_WORDS_MOST)
        case pb.BenchmarkReport() if reply.HasField("level") and reply.level.HasField("failure"):
            reply.level.failure = _text(reply.level.failure)
    if not isinstance(reply, pb.CommandResult) and reply.HasField("error"):
        reply.error = _text(reply.error)
