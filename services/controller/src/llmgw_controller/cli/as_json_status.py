"""The status and what it is made of, as JSON with stable names: capacity, fabrics, holdings."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.as_json import Json, event, head, opt
from llmgw_controller.cli.as_json_replicas import replica
from llmgw_controller.cli.bars import PARTS
from llmgw_controller.cli.text import iso
from llmgw_controller.cli.views import status as status_view


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
                "near_miss": _near_miss(t.near_miss) if t.HasField("near_miss") else None,
                "reason": opt(t, "reason"),
                "lost_in_seconds": opt(t, "lost_in_s"),
                "holds_gpus": opt(t, "holds_gpus"),
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
                "memory_gb": row.memory_total_bytes // 10**9 if row.HasField("memory_total_bytes") else None,
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


def _near_miss(one: pb.TroubleNearMiss) -> Json:
    """Of an unplaceable model: the node that lacks least, and how many of the nodes it takes are found."""
    return {
        "fabric": opt(one, "fabric"),
        "node": one.node_id,
        "free": one.free,
        "of": one.of,
        "evict": list(one.evict_replica_ids),
        "nodes_needed": one.nodes_needed,
        "nodes_found": one.nodes_found,
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
