"""The views as JSON with stable names, only ever added to: what all of them share, and the log.

Unknown is null, but for `idle_seconds` (M2): 0 busy, -1 unknown; it never stands without `idleness`.
"""

from typing import Any

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.text import iso

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
