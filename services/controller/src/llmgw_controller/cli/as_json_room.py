"""Holdings and receipts as JSON with stable names, only ever added to."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.as_json import Json, head, opt
from llmgw_controller.cli.as_json_status import holding
from llmgw_controller.cli.text import iso


def reclaim(answer: pb.ReclaimResponse, *, applied: bool) -> Json:
    return head("reclaim", answer.info) | {
        "applied": applied,
        "gpus": answer.gpus,
        "gpu_hours": round(answer.gpu_hours, 2),
        "holdings": [
            holding(row)
            | {
                "may_go": not row.HasField("kept_because"),
                "kept_text": opt(row, "kept_text"),
                "kept_until": iso(opt(row, "kept_until_unix_s")),
            }
            for row in answer.holdings
        ],
        "unknown": [
            {"replica": row.replica_id, "reason": row.reason, "gpus": row.gpus, "idleness": "unknown"}
            for row in answer.unknown
        ],
        "changes": [
            {"replica": row.replica_id, "outcome": row.outcome, "text": row.text, "gpus": row.gpus}
            for row in answer.changes
        ],
    }


def evictions(answer: pb.ListEvictionsResponse) -> Json:
    return head("evictions", answer.info) | {
        "evictions": [
            {
                "id": row.eviction_id,
                "victim": row.victim_replica_id,
                "victim_model": row.victim_model,
                "for": opt(row, "beneficiary_replica_id"),
                "for_model": row.beneficiary_model,
                "decided": iso(row.decided_unix_s),
                "acknowledged": iso(opt(row, "acknowledged_unix_s")),
                "state": row.state,
                "text": row.text,
                "evidence": list(row.evidence),
                "gpus": row.gpus,
                "idle_seconds": int(row.idle_s),
                "predicted_free_seconds": opt(row, "predicted_free_s"),
                "real_free_seconds": opt(row, "real_free_s"),
                "reload_seconds": opt(row, "reload_s"),
                "regretted": iso(opt(row, "regretted_unix_s")),
            }
            for row in answer.evictions
        ]
    }


def demand(answer: pb.DemandResponse) -> Json:
    """`held` is null while a member router is not heard; `availability` is null of what is no model."""
    return head("demand", answer.info) | {
        "since": iso(answer.since_unix_s),
        "held_unknown": answer.held_unknown,
        "forgotten": answer.forgotten,
        "demand": [
            {
                "model": row.model,
                "availability": words.availability(row.availability)
                if row.HasField("availability")
                else None,
                "reason": opt(row, "reason"),
                "eta_seconds": opt(row, "eta_s"),
                "held": opt(row, "held"),
                "waiting_routers": row.waiting_routers,
                "asks": row.asks,
                "served": row.served,
                "refused": row.refused,
                "given_up": row.given_up,
                "most_waiting": row.most_waiting,
                "first_asked": iso(opt(row, "first_asked_unix_s")),
                "last_asked": iso(opt(row, "last_asked_unix_s")),
                "refusal": {
                    "code": row.refused_code,
                    "text": row.refused_text,
                    "at": iso(opt(row, "refused_unix_s")),
                }
                if row.HasField("refused_code")
                else None,
            }
            for row in answer.rows
        ],
    }
