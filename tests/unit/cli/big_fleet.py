"""The fleet of 24 nodes that operators look at, made from rows and words by the core's own view: so that what
is printed and what is counted cannot part."""

from dataclasses import replace

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_explained, wire_nodes, wire_operator, wire_replicas
from llmgw_controller.core.activity import Activity
from llmgw_controller.core.heard import DeviceFault, DeviceState, FaultClass, ForeignProcess, ShardState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.risk import risks
from llmgw_controller.core.rows import Cause, LoadRecord, Phase, Schedulability
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.view import FleetView, fleet_view
from llmgw_controller.core.why import why
from llmgw_kit.ids import ModelId
from tests.unit.controller import build
from tests.unit.controller.build import GIB, activity, device, heard, member, model, node, profile, router

NOW = 1_796_049_127.0  # 30 Nov 2026, 14:32:07 UTC
HOUR = 3600.0
DAY = 24 * HOUR

SIZE = {"H200": 141 * 10**9, "H100": 80 * 10**9, "L40S": 48 * 10**9}


def _profile(gpu_class: str, nodes: int, gpus: int) -> object:
    return profile(
        gpu_class.lower(), gpu_class=gpu_class, nodes=nodes, gpus_per_node=gpus, tensor_parallel=gpus,
        pipeline_parallel=nodes,
    )  # fmt: skip


#: Model: class, nodes, GPUs on each, and where its replicas run (node and first GPU of each shard).
PLACES: dict[str, tuple[str, int, list[list[tuple[str, int]]]]] = {
    "deepseek-v3": ("H200", 8, [[("h200-01", 0), ("h200-02", 0)]]),
    "kimi-k2": ("H200", 8, [[("h200-03", 0), ("h200-04", 0)]]),
    "qwen3-235b": ("H200", 8, [[("h200-05", 0)], [("h200-06", 0)]]),
    "gpt-oss-120b": (
        "H200", 2,
        [[("h200-07", 0)], [("h200-07", 2)], [("h200-07", 4)], [("h200-07", 6)], [("h200-09", 4)],
         [("h200-10", 0)]],
    ),
    "glm-4.5": ("H200", 8, [[("h200-11", 0)]]),
    "mistral-large": ("H200", 4, [[("h200-09", 0)]]),
    "llama-3.3-70b": (
        "H100", 4, [[("h100-01", 0)], [("h100-01", 4)], [("h100-02", 0)], [("h100-02", 4)], [("h100-04", 4)]],
    ),
    "qwen3-32b": ("H100", 2, [[("h100-03", 0)], [("h100-03", 2)], [("h100-06", 2)]]),
    "qwen3-8b": ("H100", 2, [[("h100-06", 0)], [("h100-07", 0)]]),
    "codestral-22b": ("H100", 2, [[("h100-03", 6)]]),
    "command-a": ("H100", 4, [[("h100-04", 0)]]),
    "mixtral-8x22b": ("H100", 8, [[("h100-05", 0)]]),
    "qwen2.5-vl-7b": ("L40S", 1, [[("l40s-01", 0)], [("l40s-01", 1)], [("l40s-04", 0)]]),
    "bge-m3": ("L40S", 1, [[("l40s-01", 2)], [("l40s-02", 2)], [("l40s-02", 3)]]),
    "phi-4": ("L40S", 2, [[("l40s-02", 0)]]),
}  # fmt: skip

IN_FLIGHT = {
    "deepseek-v3": 41, "kimi-k2": 18, "qwen3-235b": 18, "gpt-oss-120b": 16, "llama-3.3-70b": 12,
    "qwen3-32b": 10, "qwen2.5-vl-7b": 3, "bge-m3": 7,
}  # fmt: skip

#: Started by somebody's request; configuration keeps none.
ASKED_FOR = ("command-a", "codestral-22b")

#: Replica: idle for so many seconds.
IDLE = {
    "command-a/1": 6 * DAY + 2 * HOUR,
    "mistral-large/1": 3 * DAY + 4 * HOUR,
    "codestral-22b/1": 26 * HOUR + 840,
    "qwen3-8b/2": 3 * HOUR + 600,
}


def snapshot() -> Snapshot:
    """As the leader knows it, at NOW."""
    models = [
        model(
            name,
            _profile(gpu_class, len(places[0]), gpus),
            replicas=0 if name in ASKED_FOR else len(places),
            idle_after_s=None if name in ASKED_FOR else 6 * HOUR,
        )
        for name, (gpu_class, gpus, places) in PLACES.items()
    ]
    models.append(model("llama-405b", _profile("H100", 2, 8), replicas=1))
    models.append(model("gemma-3-27b", _profile("L40S", 1, 1)))
    nodes = [
        *(node(f"h200-{n:02}", 8, gpu_class="H200", fabrics=("ib-1",)) for n in range(1, 13)),
        *(node(f"h100-{n:02}", 8, gpu_class="H100", fabrics=("ib-2",)) for n in range(1, 9)),
        *(node(f"l40s-{n:02}", 4, gpu_class="L40S") for n in range(1, 5)),
    ]
    nodes = [
        replace(
            one,
            devices=tuple(replace(d, memory_total_bytes=SIZE[d.gpu_class]) for d in one.devices),
            schedulability=Schedulability.CORDONED if one.node_id == "l40s-03" else one.schedulability,
            reason="by mara: driver update" if one.node_id == "l40s-03" else None,
        )
        for one in nodes
    ]
    rows = [build.replica(models[-2], 1, Phase.UNPLACEABLE, reason="", since=NOW - 4.75 * HOUR)]
    for one in models:
        gpus, places = (PLACES[one.name][1], PLACES[one.name][2]) if one.name in PLACES else (0, [])
        for number, spots in enumerate(places, start=1):
            replica_id = f"{one.name}/{number}"
            parts = [
                build.shard(replica_id, name, *range(first, first + gpus), rank=rank, port=20000 + first)
                for rank, (name, first) in enumerate(spots)
            ]
            phase = Phase.STARTING if one.name == "glm-4.5" else Phase.READY
            since = NOW - 55 if phase is Phase.STARTING else NOW - 10 * DAY
            ready = None if phase is Phase.STARTING else since
            cause = Cause.ACTIVATION if one.name in ASKED_FOR else Cause.CONFIGURATION
            rows.append(
                build.replica(one, number, phase, *parts, since=since, ready_since=ready, cause=cause)
            )
    snap = build.snapshot(
        models, nodes, rows, words=[], term_started=NOW - 30 * DAY, routers={"r1": member()},
        loads=tuple(_loads(models)), held={ModelId("glm-4.5"): 3},
    )  # fmt: skip
    snap = replace(snap, term=41, activity=_activity(), heard=_heard(snap))
    text = "needs 2 nodes with 8 H100 free each, on one fabric; of 24 nodes: 1 free and fitting"
    stuck = replace(snap.stored.replicas["llama-405b/1"], reason=text)
    return replace(
        snap, stored=replace(snap.stored, replicas={**snap.stored.replicas, "llama-405b/1": stuck})
    )


def _loads(models: list) -> list[LoadRecord]:
    seconds = {"glm-4.5": 95.0, "qwen3-8b": 75.0, "command-a": 96.0, "mistral-large": 112.0,
               "codestral-22b": 48.0, "llama-405b": 370.0}  # fmt: skip
    return [
        LoadRecord(one.name, one.profiles[0].name, one.profiles[0].gpu_class, seconds[one.name], NOW - DAY)
        for one in models
        if one.name in seconds
    ]


def _activity() -> Activity:
    flights = {
        f"{name}/{number}": count
        for name, count in IN_FLIGHT.items()
        for number in range(1, len(PLACES[name][2]) + 1)
    }
    flights["qwen3-8b/1"] = 6
    touched = dict.fromkeys(flights, 1.0) | IDLE
    pen = replace(router(), in_flight=flights)
    return activity(pen, touched=touched, watching_since=500_000.0 - 30 * DAY)


def _heard(snap: Snapshot) -> dict:
    found = {}
    rows = list(snap.stored.replicas.values())
    for one in snap.stored.nodes.values():
        reports = [_report(report) for report in build.usual_reports(one, rows)]
        devices = tuple(
            _device(device(d, memory_total_bytes=d.memory_total_bytes), reports) for d in one.devices
        )
        at = NOW - 128 if one.node_id == "h100-05" else NOW - 2
        found[one.node_id] = heard(one, reports, at=at, devices=devices)
    return found


def _report(report):
    if report.replica_id == "phi-4/1":
        return replace(report, running=None, running_unknown="HTTP 500")
    if report.state is ShardState.LOADING:
        return replace(report, progress=0.61)
    return replace(report, running=0)


def _device(one, reports):
    used = any(one.device_id in report.device_ids for report in reports)
    one = replace(
        one,
        memory_used_bytes=int((one.memory_total_bytes or 0) * 0.89) if used else 0,
        temperature_celsius=61.0 if used else 34.0,
        power_watts=612.0 if used else 72.0,
    )
    if one.device_id == "h100-03:5":
        at = NOW - 8854
        fault = DeviceFault(FaultClass.FATAL, "xid_79", "fallen off the bus", at)
        return replace(
            one, state=DeviceState.MISSING, reason="xid_79", fault=fault, since=at, temperature_celsius=88.0
        )
    if one.device_id == "l40s-04:2":
        at = NOW - 2 * DAY
        fault = DeviceFault(FaultClass.SUSPECT, "xid_48", "3 uncorrectable memory errors", at)
        return replace(one, state=DeviceState.UNHEALTHY, reason="xid_48", fault=fault, since=at)
    if one.device_id == "h100-06:4":
        held = int(31.2 * GIB)
        return replace(one, foreign_used_bytes=held, memory_used_bytes=held,
                       foreign=(ForeignProcess(48211, "python", "mkraus", held),))  # fmt: skip
    return one


def view() -> FleetView:
    snap = snapshot()
    return fleet_view(snap, verdicts(snap, NOW), NOW)


def status() -> pb.GetStatusResponse:
    seen = view()
    answer = wire_operator.status(seen, info(seen), risks(snapshot(), NOW))
    answer.eviction = "off"
    return answer


def info(seen: FleetView) -> pb.ViewInfo:
    return wire_operator.info(
        seen, cluster="lab-eu", leader_name="controller-1", store="postgres", rows_age_s=0.5
    )


def nodes() -> pb.ListNodesResponse:
    seen = view()
    return pb.ListNodesResponse(
        info=info(seen), nodes=[wire_nodes.node(line, seen.at) for line in seen.nodes]
    )


def devices(node_id: str) -> pb.ListDevicesResponse:
    seen = view()
    lines = [line for line in seen.devices if line.device.node_id == node_id]
    return pb.ListDevicesResponse(
        info=info(seen), devices=[wire_nodes.device(line, seen.at) for line in lines]
    )


def replicas() -> pb.ListReplicasResponse:
    seen = view()
    return pb.ListReplicasResponse(
        info=info(seen), replicas=[wire_replicas.replica(line, seen.at) for line in seen.replicas]
    )


def models() -> pb.ListModelsResponse:
    seen = view()
    return pb.ListModelsResponse(
        info=info(seen), models=[wire_replicas.model(line, seen.at) for line in seen.models]
    )


def why_of(name: str) -> pb.WhyResponse:
    snap, seen = snapshot(), view()
    found = why(snap, verdicts(snap, NOW), snap.catalog.models[ModelId(name)], NOW)
    return wire_explained.why(found, info(seen), None)
