"""The same views as JSON with stable names, only ever added to.

Unknown is null, but for `idle_seconds` (M2): 0 busy, -1 unknown; it never stands without `idleness`.
"""

from typing import Any

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.bars import PARTS, USE_PART
from llmgw_controller.cli.text import iso
from llmgw_controller.cli.views import status as status_view
from llmgw_controller.cli.views.common import idle_seconds

Json = dict[str, Any]


def opt(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def head(schema: str, info: pb.ViewInfo) -> Json:
    return {
        "schema": f"llmgw.{schema}/1",
        "cluster": info.cluster,
        "at": iso(info.at_unix_s),
        "age_seconds": round(info.age_s, 1),
        "leader": {"name": info.leader_name, "term": info.term},
        "store": info.store,
        "learning": info.learning,
    }


def status(answer: pb.GetStatusResponse, *, exit_code: int) -> Json:
    now = answer.info.at_unix_s
    models = [words.availability(m.availability) for m in answer.models]
    return head("status", answer.info) | {
        "exit_code": exit_code,
        "nodes": {
            "total": answer.nodes.heard + answer.nodes.silent + answer.nodes.lost,
            "heard": answer.nodes.heard,
            "silent": answer.nodes.silent,
            "lost": answer.nodes.lost,
        },
        "routers": {
            "members": answer.routers.members,
            "heard": answer.routers.heard,
            "oldest_report_seconds": opt(answer.routers, "oldest_report_s"),
        },
        "trouble": [
            {
                "severity": words.severity(t.severity),
                "kind": t.kind,
                "subject": t.subject,
                "text": t.text,
                "since": iso(opt(t, "since_unix_s")),
                "fix": opt(t, "fix"),
            }
            for t in answer.trouble
        ],
        "brake": answer.brake,
        "recorded_at": iso(opt(answer, "recorded_unix_s")),
        "events_since": [event(row) for row in answer.events_since],
        "capacity": [
            {
                "class": row.gpu_class,
                "total": row.total,
                "memory_total_bytes": opt(row, "memory_total_bytes"),
                "memory_free_bytes": opt(row, "memory_free_bytes"),
                "parts": {part.name: getattr(row.parts, part.name) for part in PARTS},
            }
            for row in answer.capacity
        ],
        "fabrics": [_fabric(row) for row in answer.fabrics],
        "node_loss": _node_loss(answer),
        "models": {"total": len(models)}
        | {word: models.count(word) for word in ("ready", "starting", "cold", "unavailable")}
        | {"serving": models.count("ready"), "down": models.count("unavailable")},
        "in_flight": _sum_in_flight(answer),
        "held": sum(m.held for m in answer.models),
        "replicas_ready": sum(m.ready for m in answer.models),
        "replicas_wanted": sum(m.wanted for m in answer.models),
        "nobody_asked": [holding(row) for row in answer.nobody_asked],
        "eviction": answer.eviction or None,
        "suggestions": [
            {
                "for": row.beneficiary_model,
                "evict": list(row.victim_replica_ids),
                "text": row.text,
                "frees_in_seconds": opt(row, "frees_in_s"),
                "reload_seconds": opt(row, "reload_s"),
            }
            for row in answer.suggestions
        ],
        "replicas": [replica(row, now=now) for row in answer.replicas],
    }


def _sum_in_flight(answer: pb.GetStatusResponse) -> int | None:
    told = status_view.in_flight(answer)
    return None if told == "-" else int(told)


def _fabric(row: pb.FabricRow) -> Json:
    return {
        "id": row.fabric or None,
        "class": row.gpu_classes[0] if len(row.gpu_classes) == 1 else None,
        "classes": list(row.gpu_classes),
        "nodes": row.nodes,
        "whole_free": row.whole_free,
        "whole_free_if_idle_left": row.whole_free_if_idle_left,
        "largest_fit": _largest(row, "largest_fit"),
        "largest_fit_if_idle_left": _largest(row, "largest_fit_if_idle_left"),
    }


def _largest(row: pb.FabricRow, field: str) -> Json | None:
    fit = opt(row, field)
    if fit is None:
        return None
    return {"nodes": fit.nodes, "gpus_per_node": fit.gpus_per_node, "class": fit.gpu_class}


def _node_loss(answer: pb.GetStatusResponse) -> Json | None:
    """What one node's end would leave without a place; null: not looked for yet."""
    if not answer.risks_known:
        return None
    return {
        "nodes": answer.nodes.heard,
        "spare": max(0, answer.nodes.heard - len(answer.risks)),
        "risks": [
            {"node": risk.node_id, "homeless": list(risk.homeless_replica_ids), "text": risk.text}
            for risk in answer.risks
        ],
    }


def holding(row: pb.IdleHolding) -> Json:
    """What an idle replica holds, and its price."""
    return {
        "replica": row.replica_id,
        "model": row.model,
        "class": row.gpu_class,
        "gpus": row.gpus,
        "idle_seconds": int(row.idle_s),
        "idleness": "idle",
        "never_asked": row.never_asked,
        "last_asked": iso(opt(row, "last_asked_unix_s")),
        "gpu_hours": round(row.gpu_hours, 2),
        "reload_seconds": opt(row, "reload_s"),
        "kept_because": opt(row, "kept_because"),
    }


def fabrics(answer: pb.GetStatusResponse, nodes: pb.ListNodesResponse) -> Json:
    return head("fabrics", answer.info) | {
        "fabrics": [
            _fabric(row)
            | {
                "node_ids": sorted(
                    n.node_id
                    for n in nodes.nodes
                    if row.fabric in n.fabrics or (not row.fabric and not n.fabrics)
                )
            }
            for row in answer.fabrics
        ],
        "node_loss": _node_loss(answer),
    }


def nodes(answer: pb.ListNodesResponse) -> Json:
    now = answer.info.at_unix_s
    return head("nodes", answer.info) | {"nodes": [_node(row, now=now) for row in answer.nodes]}


def _node(row: pb.NodeRow, *, now: float) -> Json:
    return {
        "id": row.node_id,
        "state": pb.NodeState.Name(row.state).removeprefix("NODE_STATE_"),
        "schedulability": pb.Schedulability.Name(row.schedulability).removeprefix("SCHEDULABILITY_").lower(),
        "beat_age_seconds": opt(row, "beat_age_s"),
        "fabrics": list(row.fabrics),
        "pool": opt(row, "pool"),
        "address": row.address,
        "version": row.version,
        "disk_free_bytes": opt(row, "disk_free_bytes"),
        "reason": opt(row, "reason"),
        "replicas": list(row.replica_ids),
        "devices": [device(d, now=now) for d in row.devices],
        "weights": [
            {"model": w.model, "version": w.version, "bytes": w.bytes, "complete": w.complete}
            for w in row.weights
        ],
    }


def gpus(answer: pb.ListDevicesResponse) -> Json:
    now = answer.info.at_unix_s
    return head("gpus", answer.info) | {"gpus": [device(row, now=now) for row in answer.devices]}


def device(row: pb.DeviceRow, *, now: float) -> Json:
    d: agent_pb2.Device = row.device
    return {
        "node": row.node_id,
        "id": d.device_id,
        "index": d.index,
        "class": d.gpu_class,
        "vendor": d.vendor,
        "state": words.device_state(d).upper(),
        "reason": opt(d, "reason"),
        "use": USE_PART[row.use],
        "replica": opt(row, "replica_id"),
        "memory_total_bytes": opt(d, "memory_total_bytes"),
        "memory_used_bytes": opt(d, "memory_used_bytes"),
        "foreign_used_bytes": opt(d, "foreign_used_bytes"),
        "temperature_celsius": opt(d, "temperature_celsius"),
        "power_watts": opt(d, "power_watts"),
        "driver_version": opt(d, "driver_version"),
        "since": iso(opt(d, "since_unix_s")),
        "fault": {
            "class": agent_pb2.FaultClass.Name(d.fault.fault_class).removeprefix("FAULT_CLASS_").lower(),
            "reason": d.fault.reason,
            "text": d.fault.text,
            "at": iso(d.fault.at_unix_s),
        }
        if d.HasField("fault")
        else None,
        "foreign": [
            {"pid": one.pid, "name": one.name, "user": one.user, "memory_bytes": opt(one, "memory_bytes")}
            for one in d.foreign
        ],
        "notes": list(d.notes),
    } | (_idleness(row.idleness, now=now) if row.HasField("idleness") else {})


def _idleness(idleness: pb.Idleness, *, now: float) -> Json:
    return {
        "idleness": words.idleness(idleness),
        "idle_seconds": idle_seconds(idleness, now=now),
        "idle_unknown_reason": opt(idleness, "unknown_reason"),
        "never_asked": idleness.never_asked,
        "direct_traffic": idleness.direct_traffic,
    }


def replicas(answer: pb.ListReplicasResponse) -> Json:
    now = answer.info.at_unix_s
    return head("replicas", answer.info) | {"replicas": [replica(row, now=now) for row in answer.replicas]}


def replica(row: pb.ReplicaRow, *, now: float) -> Json:
    return {
        "id": row.replica_id,
        "model": row.model,
        "profile": row.profile,
        "phase": words.phase_name(row),
        "reason": opt(row, "reason"),
        "until": iso(opt(row, "until_unix_s")),
        "unreachable": row.unreachable,
        "nodes": sorted({shard.node_id for shard in row.shards}),
        "gpus": row.gpus,
        "group_epoch": row.group_epoch,
        "restarts": row.restarts,
        "url": opt(row, "url"),
        "in_flight": opt(row, "in_flight"),
        "last_asked": iso(opt(row, "last_asked_unix_s")),
        "ready_since": iso(opt(row, "ready_since_unix_s")),
        "progress": opt(row, "progress"),
        "cause": row.cause,
        "probe_error": opt(row, "probe_error"),
        "stalled_seconds": opt(row, "stalled_s"),
        "shards": [_shard(shard) for shard in row.shards],
    } | _idleness(row.idleness, now=now)


def _shard(row: pb.ShardRow) -> Json:
    heard = row.observed if row.HasField("observed") else None
    return {
        "id": row.shard_id,
        "node": row.node_id,
        "devices": list(row.device_ids),
        "ports": dict(sorted(row.ports.items())),
        "state": words.shard_state(row).upper() if heard is not None else None,
        "pid": opt(heard, "pid") if heard is not None else None,
        "pid_start_ticks": opt(heard, "pid_start_ticks") if heard is not None else None,
        "adopted": heard.adopted if heard is not None else None,
        "running_requests": opt(heard, "running_requests") if heard is not None else None,
        "load_seconds": opt(heard, "load_s") if heard is not None else None,
    }


def models(answer: pb.ListModelsResponse) -> Json:
    return head("models", answer.info) | {
        "models": [
            {
                "id": row.model,
                "aliases": list(row.aliases),
                "state": words.availability(row.availability),
                "reason": opt(row, "reason"),
                "wanted": row.wanted,
                "ready": row.ready,
                "starting": row.starting,
                "gpus": row.gpus,
                "in_flight": opt(row, "in_flight"),
                "held": row.held,
                "last_asked": iso(opt(row, "last_asked_unix_s")),
                "eta_seconds": opt(row, "eta_s"),
                "source": row.source,
                "profiles": list(row.profiles),
                "stopped": row.stopped,
                "pinned": row.pinned,
                "created": iso(opt(row, "created_unix_s")),
                "idleness": words.idleness(row.idleness) if row.HasField("idleness") else None,
            }
            for row in answer.models
        ]
    }


def events(answer: pb.ListEventsResponse) -> Json:
    return head("events", answer.info) | {"events": [event(row) for row in answer.events]}


def event(row: pb.Event) -> Json:
    """One line of the log."""
    return {
        "id": row.event_id,
        "at": iso(row.at_unix_s),
        "term": row.term,
        "severity": words.severity(row.severity),
        "kind": row.kind,
        "subject": row.subject,
        "text": row.text,
    }
