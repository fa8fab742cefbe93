"""`llmgwctl demand`: what was asked for that was not up, and what became of it."""

from llmgw.v1 import operator_pb2 as pb
from llmgw.v1 import routing_pb2
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.text import ago, count, duration, moment
from llmgw_controller.cli.views.common import first_line

#: Refusals told in words.
TOLD = 5


def render(page: Page, answer: pb.DemandResponse) -> None:
    now = answer.info.at_unix_s
    unmet = [row for row in answer.rows if _unmet(row)]
    since = f"this leader counts since {moment(answer.since_unix_s, now=now)}"
    first_line(page, answer.info, since, f"{count(len(answer.rows), 'name')}, {len(unmet)} not up")
    if answer.held_unknown:
        page.line((" * ", ""), "a router is not heard: how many requests are held is unknown")
    if not answer.rows:
        page.line("nothing was asked for that was not up; what nobody asks for: llmgwctl reclaim --plan")
        return
    columns = [
        Column("MODEL", most=20), Column("STATE"), Column("HELD", right=True), Column("ASKS", right=True),
        Column("SERVED", right=True), Column("REFUSED", right=True), Column("LEFT", right=True),
        Column("FIRST ASKED"), Column("LAST ASKED"),
    ]  # fmt: skip
    table(page, columns, [_row(row, now) for row in answer.rows])
    for row in [row for row in unmet if row.HasField("refused_text")][:TOLD]:
        text = row.refused_text.removeprefix(f"{row.model}: ")
        wrapped(page, [], f"{row.model}, refused {ago(row.refused_unix_s, now=now)}: {text}")
    for row in [row for row in unmet if _cannot(row) and not row.HasField("refused_text")][:TOLD]:
        wrapped(page, [], f"{row.model}: {row.reason.removeprefix(f'{row.model}: ')}")
    if answer.forgotten:
        page.line((f"{count(answer.forgotten, 'name')} asked for longest ago not kept", "dim"))
    text = "An ask is a router's, for all it holds; LEFT: nobody waited for its end. "
    wrapped(page, [], text + "What routers refuse by themselves stands in their own metrics.")
    known = [row for row in unmet if row.HasField("availability")]
    page.line((f"Next: llmgwctl why {known[0].model}" if known else "Next: llmgwctl models", "dim"))


def _unmet(row: pb.DemandRow) -> bool:
    return not row.HasField("availability") or row.availability != routing_pb2.MODEL_AVAILABILITY_READY


def _cannot(row: pb.DemandRow) -> bool:
    down = row.HasField("availability") and row.availability == routing_pb2.MODEL_AVAILABILITY_UNAVAILABLE
    return down and row.HasField("reason")


def _row(row: pb.DemandRow, now: float) -> tuple[str | Piece, ...]:
    return (
        row.model,
        _state(row),
        str(row.held) if row.HasField("held") else "-",
        str(row.asks),
        str(row.served),
        str(row.refused),
        str(row.given_up),
        moment(row.first_asked_unix_s if row.HasField("first_asked_unix_s") else None, now=now),
        moment(row.last_asked_unix_s if row.HasField("last_asked_unix_s") else None, now=now),
    )


def _state(row: pb.DemandRow) -> str | Piece:
    if not row.HasField("availability"):
        return "no such model"
    if row.availability == routing_pb2.MODEL_AVAILABILITY_UNAVAILABLE:
        return ("!! cannot run", "bold red")
    word = words.availability(row.availability)
    return f"{word}, ~{duration(row.eta_s)}" if row.HasField("eta_s") and word == "starting" else word
