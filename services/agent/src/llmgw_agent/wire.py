"""Messages of llmgw.v1 to core types and back. The only place that knows both."""

from llmgw.v1 import agent_pb2 as pb
from llmgw_agent.core.devices import Device, DeviceState, Inventory
from llmgw_agent.core.faults import FaultClass
from llmgw_agent.core.load import Level, Load
from llmgw_agent.core.plan import Wanted, Wish
from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.core.spec import ShardSpec, WeightsRef, check_spec
from llmgw_agent.core.weights import Held, WeightsKey
from llmgw_agent.core.words import (
    Beat,
    CancelWord,
    DesiredList,
    DevicesReport,
    DrainWord,
    DriveReport,
    DriveWord,
    Heard,
    Hello,
    LeaderBeat,
    LogPiece,
    LogsWord,
    MoveOn,
    PrefetchWord,
    Rejected,
    RemoveWord,
    Result,
    Said,
    ShardsReport,
    StartWord,
    StopWord,
    Unreadable,
    WeightsReport,
    Welcome,
    Word,
)
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import DeviceId, ReplicaId, ShardId
from llmgw_kit.text import printable

_STATES = {
    ShardState.FETCHING: pb.SHARD_STATE_FETCHING,
    ShardState.VERIFYING: pb.SHARD_STATE_VERIFYING,
    ShardState.LAUNCHING: pb.SHARD_STATE_LAUNCHING,
    ShardState.LOADING: pb.SHARD_STATE_LOADING,
    ShardState.SERVING: pb.SHARD_STATE_SERVING,
    ShardState.DRAINING: pb.SHARD_STATE_DRAINING,
    ShardState.STOPPING: pb.SHARD_STATE_STOPPING,
    ShardState.EXITED: pb.SHARD_STATE_EXITED,
}
_DEVICE_STATES = {
    DeviceState.HEALTHY: pb.DEVICE_STATE_HEALTHY,
    DeviceState.UNHEALTHY: pb.DEVICE_STATE_UNHEALTHY,
    DeviceState.MISSING: pb.DEVICE_STATE_MISSING,
}
_FAULT_CLASSES = {
    FaultClass.APP: pb.FAULT_CLASS_APP,
    FaultClass.SUSPECT: pb.FAULT_CLASS_SUSPECT,
    FaultClass.FATAL: pb.FAULT_CLASS_FATAL,
}
_WISHES = {pb.SHARD_WISH_RUN: Wish.RUN, pb.SHARD_WISH_DRAIN: Wish.DRAIN, pb.SHARD_WISH_STOP: Wish.STOP}

#: Durations a spec without them is given: 0 in a plain proto3 field means that nobody set it.
READY_TIMEOUT_S, DRAIN_TIMEOUT_S, STOP_GRACE_S = 600.0, 120.0, 20.0
#: Likewise of a welcome; without it we would beat without a pause.
BEAT_S = 5.0


#: Characters of a text for people; of a longer one the end is sent.
TEXT_MOST = 4000


def _text(said: str) -> str:
    """What engines, kernels and file systems say: no message carries half a character."""
    return printable(said, most=TEXT_MOST)


def _told(said: str | None) -> str | None:
    return None if said is None else _text(said)


def spec_from(m: pb.ShardSpec) -> tuple[ShardSpec, str | None]:
    """The spec, and why nothing can be started from it. Raises InvalidRequest for one that names no shard."""
    spec = _spec(m)
    if not spec.shard_id:
        raise InvalidRequest("a shard spec without shard_id")
    try:
        check_spec(spec)
    except InvalidRequest as e:
        return spec, e.text
    return spec, None


def _spec(m: pb.ShardSpec) -> ShardSpec:
    weights = None
    if m.HasField("weights"):
        entry = m.weights.entry_file if m.weights.HasField("entry_file") else None
        weights = WeightsRef(m.weights.model, m.weights.version, entry)
    return ShardSpec(
        shard_id=ShardId(m.shard_id), replica_id=ReplicaId(m.replica_id), group_epoch=m.group_epoch,
        spec_hash=m.spec_hash, model=m.model, engine=m.engine, profile=m.profile,
        served_names=tuple(m.served_names), device_ids=tuple(DeviceId(one) for one in m.device_ids),
        ports=dict(m.ports), weights=weights, mirror_urls=tuple(m.mirror_urls), rank=m.rank,
        world_size=m.world_size or 1, head_address=m.head_address if m.HasField("head_address") else None,
        tensor_parallel=m.tensor_parallel or 1, pipeline_parallel=m.pipeline_parallel or 1,
        data_parallel=m.data_parallel or 1,
        context_length=m.context_length if m.HasField("context_length") else None,
        args=tuple(m.args), env=dict(m.env), command=tuple(m.command),
        ready_path=m.ready_path if m.HasField("ready_path") else None,
        ready_timeout_s=m.ready_timeout_s or READY_TIMEOUT_S,
        drain_timeout_s=m.drain_timeout_s or DRAIN_TIMEOUT_S, stop_grace_s=m.stop_grace_s or STOP_GRACE_S,
        stop_after_silence_s=m.stop_after_silence_s if m.HasField("stop_after_silence_s") else None,
        credential=m.credential if m.HasField("credential") else None,
    )  # fmt: skip


def wanted_from(m: pb.Desired) -> tuple[Wanted, ...]:
    """The complete list; an entry that nothing can be started from says so, and the others stand.

    Raises InvalidRequest when one names no shard or wishes what is not known here: half a list would stop
    what is missing from it."""
    return tuple(_wanted(one) for one in m.shards)


def _wanted(m: pb.WantedShard) -> Wanted:
    if m.wish not in _WISHES:
        raise InvalidRequest(f"shard {m.spec.shard_id}: unknown wish {m.wish}")
    spec, refused = spec_from(m.spec)
    return Wanted(spec, _WISHES[m.wish], refused)


def shard_to(shard: Shard) -> pb.ObservedShard:
    """What is known of one shard."""
    spec = shard.spec
    m = pb.ObservedShard(
        shard_id=spec.shard_id, replica_id=spec.replica_id, group_epoch=spec.group_epoch,
        spec_hash=spec.spec_hash, state=_STATES[shard.state], ports=spec.ports, device_ids=spec.device_ids,
        progress=shard.progress, probed=shard.probed, running_requests=shard.running,
        running_unknown_reason=_told(shard.running_unknown), load_s=shard.load_s, adopted=shard.adopted,
        probe_error=_told(shard.probe_error), stalled_s=shard.stalled_s, fetch_s=shard.fetch_s,
        warm_up_s=shard.warm_up_s, engine_version=_told(shard.engine_version),
        memory_used_bytes=dict(shard.memory_used), credential=spec.credential,
    )  # fmt: skip
    if shard.process is not None:
        m.pid, m.pid_start_ticks = shard.process.pid, shard.process.start_ticks
    if shard.exit is not None:
        how = shard.exit
        m.exit.CopyFrom(
            pb.ShardExit(
                code=how.code, signal=how.signal, reason=_text(how.reason), message=_text(how.message)
            )
        )
    return m


def device_to(one: Device) -> pb.Device:
    """One GPU."""
    m = pb.Device(
        device_id=one.device_id, index=one.index, gpu_class=one.gpu_class, vendor=one.vendor,
        memory_total_bytes=one.memory_total_bytes, memory_used_bytes=one.memory_used_bytes,
        foreign_used_bytes=one.foreign_used_bytes, temperature_celsius=one.temperature_celsius,
        power_watts=one.power_watts, driver_version=_told(one.driver_version),
        state=_DEVICE_STATES[one.state], reason=_told(one.reason), since_unix_s=one.since,
        notes=[_text(note) for note in one.notes],
        foreign=[
            pb.ForeignProcess(
                pid=f.pid, name=_text(f.name or ""), user=_text(f.user or ""), memory_bytes=f.memory_bytes
            )
            for f in one.foreign
        ],
    )  # fmt: skip
    if one.fault is not None:
        fault = one.fault
        m.fault.CopyFrom(
            pb.DeviceFault(
                fault_class=_FAULT_CLASSES[fault.fault_class], reason=_text(fault.reason),
                text=_text(fault.text), at_unix_s=fault.at,
            )
        )  # fmt: skip
    return m


def inventory_to(one: Inventory) -> pb.Inventory:
    """What this node is."""
    return pb.Inventory(
        hostname=one.hostname, management_address=one.management_address,
        devices=[device_to(device) for device in one.devices], fabrics=one.fabrics, pool=one.pool,
        engine_ports=pb.PortRange(first=one.engine_ports[0], last=one.engine_ports[1]),
        disk_total_bytes=one.disk_total_bytes, disk_free_bytes=one.disk_free_bytes,
        engines=one.engines, labels=dict(one.labels),
    )  # fmt: skip


def held_to(held: Held) -> pb.HeldWeights:
    """One version on disk."""
    return pb.HeldWeights(
        model=held.key.model, version=held.key.version, bytes=held.bytes, complete=held.complete,
        fetching=held.fetching, progress=held.progress, error=_told(held.error), shard_ids=held.shard_ids,
    )  # fmt: skip


def load_from(m: pb.DriveBenchmark) -> Load:
    """Raises InvalidRequest for levels that are none."""
    levels = tuple(m.concurrency)
    if any(level < 1 for level in levels) or list(levels) != sorted(set(levels)):
        raise InvalidRequest(f"levels {list(levels)} do not rise from 1")
    if m.prompt_tokens < 1 or m.output_tokens < 1 or m.level_timeout_s <= 0:
        raise InvalidRequest("a benchmark needs prompt tokens, output tokens and a time limit")
    return Load(levels, m.requests_per_level or None, m.prompt_tokens, m.output_tokens, m.level_timeout_s)


def level_to(level: Level) -> pb.BenchmarkLevel:
    """One level as measured."""
    return pb.BenchmarkLevel(
        concurrency=level.concurrency, requests=level.requests, failed=level.failed, seconds=level.seconds,
        output_tokens=level.output_tokens, ttft_s=level.ttft_s, inter_token_s=level.inter_token_s,
        failure=_told(level.failure),
    )  # fmt: skip


def heard_from(m: pb.ConnectResponse) -> Heard:
    """One message of the controller. Never raises: what cannot be understood is Unreadable."""
    return Heard(m.term, _word(m))


def _word(m: pb.ConnectResponse) -> Word:
    kind = m.WhichOneof("body")
    try:
        match kind:
            case "welcome":
                w = m.welcome
                beat_s = w.beat_interval_s if w.beat_interval_s > 0 else BEAT_S
                return Welcome(w.session_epoch, beat_s, w.leader_name, tuple(w.controllers))
            case "desired":
                return DesiredList(m.desired.version, wanted_from(m.desired))
            case "start_shard":
                return StartWord(m.start_shard.command_id, *spec_from(m.start_shard.spec))
            case "drain_shard":
                return DrainWord(m.drain_shard.command_id, ShardId(m.drain_shard.shard_id))
            case "stop_shard":
                s = m.stop_shard
                return StopWord(s.command_id, ShardId(s.shard_id), s.reason or "stopped")
            case "remove_weights":
                r = m.remove_weights
                return RemoveWord(r.command_id, WeightsKey(r.model, r.version), r.force)
            case "prefetch_weights":
                p = m.prefetch_weights
                key = WeightsKey(p.weights.model, p.weights.version)
                return PrefetchWord(p.command_id, key, tuple(p.mirror_urls))
            case "read_logs":
                g = m.read_logs
                return LogsWord(g.command_id, ShardId(g.shard_id), g.tail_lines, g.follow)
            case "drive_benchmark":
                d = m.drive_benchmark
                return DriveWord(d.command_id, ShardId(d.shard_id), load_from(d))
            case "cancel_command":
                return CancelWord(m.cancel_command.command_id)
            case "beat":
                return LeaderBeat()
            case "reject":
                leader = m.reject.leader_address if m.reject.HasField("leader_address") else None
                return Rejected(m.reject.code, m.reject.text, leader)
            case "move_on":
                return MoveOn(m.move_on.leader_address if m.move_on.HasField("leader_address") else None)
    except InvalidRequest as e:
        return Unreadable(e.text, getattr(getattr(m, kind or ""), "command_id", None))
    return Unreadable("a message of a kind this agent does not know; the controller may be newer")


def said_to(epoch: int | None, said: Said) -> pb.ConnectRequest:
    """One message of ours; `epoch` None on Hello only."""
    m = pb.ConnectRequest(session_epoch=epoch)
    match said:
        case Hello():
            m.hello.CopyFrom(
                pb.Hello(
                    node_id=said.node_id, boot_id=said.boot_id, agent_instance=said.agent_instance,
                    version=said.version, highest_term_seen=said.highest_term_seen,
                    inventory=inventory_to(said.inventory), shards=[shard_to(one) for one in said.shards],
                    weights=[held_to(one) for one in said.weights], tells_applied=True,
                )
            )  # fmt: skip
        case Inventory():
            m.inventory.CopyFrom(inventory_to(said))
        case DevicesReport():
            m.device_health.CopyFrom(pb.DeviceHealth(devices=[device_to(one) for one in said.devices]))
        case ShardsReport():
            shards = [shard_to(one) for one in said.shards]
            m.shard_status.CopyFrom(pb.ShardStatus(shards=shards, complete_after=said.complete_after))
        case WeightsReport():
            held = [held_to(one) for one in said.weights]
            m.weights_status.CopyFrom(pb.WeightsStatus(weights=held, disk_free_bytes=said.disk_free_bytes))
        case Result():
            m.command_result.CopyFrom(
                pb.CommandResult(
                    command_id=said.command_id, accepted=said.accepted, message=_text(said.message),
                    freed_bytes=said.freed_bytes,
                )
            )  # fmt: skip
        case LogPiece():
            m.log_piece.CopyFrom(
                pb.LogPiece(
                    command_id=said.command_id,
                    data=said.data,
                    gap=said.gap,
                    end=said.end,
                    error=_told(said.error),
                )
            )
        case DriveReport():
            m.benchmark_report.CopyFrom(_drive_report(said))
        case Beat():
            m.beat.CopyFrom(pb.Beat(sequence=said.sequence))
    return m


def _drive_report(said: DriveReport) -> pb.BenchmarkReport:
    m = pb.BenchmarkReport(command_id=said.command_id, end=said.end, error=_told(said.error))
    if said.level is not None:
        m.level.CopyFrom(level_to(said.level))
    if (how := said.progress) is not None:
        m.progress.CopyFrom(
            pb.BenchmarkProgress(concurrency=how.concurrency, finished=how.finished, requests=how.requests)
        )
    return m
