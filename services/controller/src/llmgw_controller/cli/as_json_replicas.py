"""Models and replicas as JSON with stable names, and how idle each is."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.as_json import Json, head, opt
from llmgw_controller.cli.text import iso
from llmgw_controller.cli.views.common import idle_seconds


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
    } | idleness(row.idleness, now=now)


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


def idleness(found: pb.Idleness, *, now: float) -> Json:
    return {
        "idleness": words.idleness(found),
        "idle_seconds": idle_seconds(found, now=now),
        "idle_unknown_reason": opt(found, "unknown_reason"),
        "never_asked": found.never_asked,
        "direct_traffic": found.direct_traffic,
    }
