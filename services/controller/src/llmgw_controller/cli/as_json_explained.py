"""What is explained, as JSON with stable names: why something fits or not, and who disagrees."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.as_json import Json, head, opt
from llmgw_controller.cli.bars import USE_PART
from llmgw_controller.cli.text import iso


def why(answer: pb.WhyResponse, *, exit_code: int) -> Json:
    return head("why", answer.info) | {
        "model": answer.model,
        "verdict": words.verdict(answer.verdict),
        "exit_code": exit_code,
        "now": answer.now,
        "held": answer.held,
        "held_back": opt(answer, "held_back"),
        "waiting_since": iso(opt(answer, "waiting_since_unix_s")),
        "last_asked": iso(opt(answer, "last_asked_unix_s")),
        "replicas": answer.replicas,
        "eviction": answer.eviction or None,
        "idle": [
            {
                "replica": one.replica_id,
                "gpus": one.gpus,
                "idle_seconds": int(one.idle_s),
                "never_asked": one.never_asked,
                "may_go": not one.HasField("kept_because"),
                "kept_because": opt(one, "kept_because"),
                "kept_text": opt(one, "kept_text"),
                "kept_until": iso(opt(one, "kept_until_unix_s")),
            }
            for one in answer.idle
        ],
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
                        "fabric": opt(m, "fabric"),
                        "uses": [USE_PART[use] for use in m.uses],
                    }
                    for m in p.near_misses
                ],
                "fix": opt(p, "fix"),
                "cheapest": _fix(p.cheapest) if p.HasField("cheapest") else None,
                "other_ways": [_fix(way) for way in p.other_ways],
                "memory_bytes": opt(p, "memory_bytes"),
                "memory_source": opt(p, "memory_source"),
            }
            for p in answer.profiles
        ],
    }


def _fix(fix: pb.WhyFix) -> Json:
    return {
        "command": fix.command or None,
        "text": fix.text,
        "frees_in_seconds": opt(fix, "frees_in_s"),
        "ready_in_seconds": opt(fix, "ready_in_s"),
        "reload_seconds": opt(fix, "reload_s"),
    }


def doctor(answer: pb.DoctorResponse) -> Json:
    return head("doctor", answer.info) | {
        "disagreements": [
            {
                "severity": words.severity(one.severity),
                "kind": one.kind,
                "subject": one.subject,
                "since": iso(opt(one, "since_unix_s")),
                "witnesses": [{"who": witness.who, "says": witness.says} for witness in one.witnesses],
                "outcome": one.outcome,
            }
            for one in answer.disagreements
        ],
        "checked": list(answer.checked),
    }


def asked(address: str, word: pb.GetLeaderResponse | None, error: str | None) -> Json:
    """One controller's own word on who leads; null where it did not answer."""
    if word is None:
        return {"address": address, "error": error}
    return {
        "address": address,
        "error": None,
        "name": word.name,
        "leading": word.leading,
        "leader": opt(word, "leader_name"),
        "term": opt(word, "term"),
        "store": word.store,
        "config_hash": word.config_hash,
    }
