"""The same views as JSON with stable names, only ever added to.

Unknown is null, but for `idle_seconds` (M2): 0 busy, -1 unknown; it never stands without `idleness`.
"""

from typing import Any

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.bars import PARTS, USE_PART
from llmgw_controller.cli.text import iso
from llmgw_controller.cli.views.common import idle_seconds

Json = dict[str, Any]


def _opt(message: Any, field: str) -> Any:
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
            "oldest_report_seconds": _opt(answer.routers, "oldest_report_s"),
        },
        "trouble": [
            {
                "severity": words.severity(t.severity),
                "kind": t.kind,
                "subject": t.subject,
                "text": t.text,
                "since": iso(_opt(t, "since_unix_s")),
                "fix": _opt(t, "fix"),
            }
            for t in answer.trouble
        ],
        "capacity": [
            {
                "class": row.gpu_class,
                "total": row.total,
                "memory_total_bytes": _opt(row, "memory_total_bytes"),
                "memory_free_bytes": _opt(row, "memory_free_bytes"),
                "parts": {part.name: getattr(row.parts, part.name) for part in PARTS},
            }
            for row in answer.capacity
        ],
        "fabrics": [
            {
                "id": row.fabric or None,
                "classes": list(row.gpu_classes),
                "nodes": row.nodes,
                "whole_free": row.whole_free,
                "whole_free_if_idle_left": row.whole_free_if_idle_left,
            }
            for row in answer.fabrics
        ],
        "models": {"total": len(models)}
        | {word: models.count(word) for word in ("ready", "starting", "cold", "unavailable")},
        "replicas": [replica(row, now=now) for row in answer.replicas],
    }


def nodes(answer: pb.ListNodesResponse) -> Json:
    now = answer.info.at_unix_s
    return head("nodes", answer.info) | {"nodes": [_node(row, now=now) for row in answer.nodes]}


def _node(row: pb.NodeRow, *, now: float) -> Json:
    return {
        "id": row.node_id,
        "state": pb.NodeState.Name(row.state).removeprefix("NODE_STATE_"),
        "schedulability": pb.Schedulability.Name(row.schedulability).removeprefix("SCHEDULABILITY_").lower(),
        "beat_age_seconds": _opt(row, "beat_age_s"),
        "fabrics": list(row.fabrics),
        "pool": _opt(row, "pool"),
        "address": row.address,
        "version": row.version,
        "disk_free_bytes": _opt(row, "disk_free_bytes"),
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
        "reason": _opt(d, "reason"),
        "use": USE_PART[row.use],
        "replica": _opt(row, "replica_id"),
        "memory_total_bytes": _opt(d, "memory_total_bytes"),
        "memory_used_bytes": _opt(d, "memory_used_bytes"),
        "foreign_used_bytes": _opt(d, "foreign_used_bytes"),
        "temperature_celsius": _opt(d, "temperature_celsius"),
        "power_watts": _opt(d, "power_watts"),
        "driver_version": _opt(d, "driver_version"),
    } | (_idleness(row.idleness, now=now) if row.HasField("idleness") else {})


def _idleness(idleness: pb.Idleness, *, now: float) -> Json:
    return {
        "idleness": words.idleness(idleness),
        "idle_seconds": idle_seconds(idleness, now=now),
        "idle_unknown_reason": _opt(idleness, "unknown_reason"),
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
        "reason": _opt(row, "reason"),
        "until": iso(_opt(row, "until_unix_s")),
        "unreachable": row.unreachable,
        "nodes": sorted({shard.node_id for shard in row.shards}),
        "gpus": row.gpus,
        "group_epoch": row.group_epoch,
        "restarts": row.restarts,
        "url": _opt(row, "url"),
        "in_flight": _opt(row, "in_flight"),
        "last_asked": iso(_opt(row, "last_asked_unix_s")),
        "ready_since": iso(_opt(row, "ready_since_unix_s")),
        "progress": _opt(row, "progress"),
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
        "pid": _opt(heard, "pid") if heard is not None else None,
        "pid_start_ticks": _opt(heard, "pid_start_ticks") if heard is not None else None,
        "adopted": heard.adopted if heard is not None else None,
        "running_requests": _opt(heard, "running_requests") if heard is not None else None,
        "load_seconds": _opt(heard, "load_s") if heard is not None else None,
    }


def models(answer: pb.ListModelsResponse) -> Json:
    return head("models", answer.info) | {
        "models": [
            {
                "id": row.model,
                "aliases": list(row.aliases),
                "state": words.availability(row.availability),
                "reason": _opt(row, "reason"),
                "wanted": row.wanted,
                "ready": row.ready,
                "starting": row.starting,
                "gpus": row.gpus,
                "in_flight": _opt(row, "in_flight"),
                "held": row.held,
                "last_asked": iso(_opt(row, "last_asked_unix_s")),
                "eta_seconds": _opt(row, "eta_s"),
                "source": row.source,
                "profiles": list(row.profiles),
            }
            for row in answer.models
        ]
    }


def events(answer: pb.ListEventsResponse) -> Json:
    return head("events", answer.info) | {
        "events": [
            {
                "id": row.event_id,
                "at": iso(row.at_unix_s),
                "term": row.term,
                "severity": words.severity(row.severity),
                "kind": row.kind,
                "subject": row.subject,
                "text": row.text,
            }
            for row in answer.events
        ]
    }


def why(answer: pb.WhyResponse, *, exit_code: int) -> Json:
    return head("why", answer.info) | {
        "model": answer.model,
        "verdict": words.verdict(answer.verdict),
        "exit_code": exit_code,
        "now": answer.now,
        "profiles": [
            {
                "profile": p.profile,
                "verdict": words.verdict(p.verdict),
                "needs": p.needs,
                "nodes_considered": p.nodes_considered,
                "filtered": [
                    {"reason": f.reason, "count": f.count, "nodes": list(f.node_ids)} for f in p.filters
                ],
                "fitting": list(p.fitting_nodes),
                "placement": [{"node": w.node_id, "devices": list(w.device_ids)} for w in p.placement],
                "near_misses": [
                    {
                        "node": m.node_id,
                        "free": m.free,
                        "needed": m.needed,
                        "evict": list(m.evict_replica_ids),
                        "text": m.text,
                    }
                    for m in p.near_misses
                ],
                "fix": _opt(p, "fix"),
            }
            for p in answer.profiles
        ],
    }
