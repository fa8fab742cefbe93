"""`llmgwctl evictions`: who left for whom, on what evidence, in how long, and whether it was right."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.text import count, duration, moment
from llmgw_controller.cli.views.common import age

#: Of the newest so many the evidence is told too.
TOLD = 3


def render(page: Page, answer: pb.ListEvictionsResponse) -> None:
    rows = list(answer.evictions)
    regretted = sum(row.HasField("regretted_unix_s") for row in rows)
    parts = [age(answer.info), count(len(rows), "eviction") + (", newest first" if len(rows) > 1 else "")]
    if regretted:
        parts.append(f"{regretted} regretted")
    page.line(" · ".join(parts))
    if not rows:
        page.line(("none so far; what could leave: llmgwctl reclaim --plan", "dim"))
        return
    columns = [
        Column("DECIDED"),
        Column("LEFT", most=24),
        Column("FOR", most=24),
        Column("GPUS", right=True),
        Column("IDLE", right=True),
        Column("FREE IN", right=True),
        Column("EXPECTED", right=True),
        Column("RELOAD", right=True),
        Column("OUTCOME"),
    ]
    now = answer.info.at_unix_s
    table(page, columns, [_row(row, now=now) for row in rows])
    for row in rows[:TOLD]:
        page.blank()
        wrapped(page, [(f"{row.eviction_id}  ", "bold")], row.text)
        for line in row.evidence:
            wrapped(page, [("    ", "")], line)


def _row(row: pb.EvictionRow, *, now: float) -> tuple[str | Piece, ...]:
    return (
        moment(row.decided_unix_s, now=now, seconds=True),
        row.victim_replica_id,
        row.beneficiary_replica_id if row.HasField("beneficiary_replica_id") else row.beneficiary_model,
        str(row.gpus),
        duration(row.idle_s),
        _took(row, "real_free_s"),
        _took(row, "predicted_free_s"),
        _took(row, "reload_s"),
        _outcome(row),
    )


def _took(row: pb.EvictionRow, field: str) -> str:
    return duration(getattr(row, field)) if row.HasField(field) else "-"  # type: ignore[arg-type]


def _outcome(row: pb.EvictionRow) -> str | Piece:
    if row.state == "failed":
        return ("!! failed", "bold red")
    if row.HasField("regretted_unix_s"):
        return "regretted"
    if row.state == "draining":
        return "put aside" if row.HasField("acknowledged_unix_s") else "being put aside"
    return row.state
