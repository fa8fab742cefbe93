"""`llmgwctl mirror history`: who asked for what, and what became of it."""

import time

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession
from llmgw_controller.cli.mirror.names import ModelName, label
from llmgw_controller.cli.page import Page, Piece, wrapped
from llmgw_controller.cli.text import count, iso, moment, size
from llmgw_controller.cli.times import Span

#: After which somebody may have to do something.
_TROUBLE = frozenset({"failed", "quarantined"})


@click.command("history")
@click.argument("model", required=False, type=ModelName())
@click.option("--since", type=Span(), help="Only so far back: 3h, 7d.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.pass_obj
def history(session: MirrorSession, model: str | None, since: float | None, limit: int) -> None:
    """Who asked for what and what became of it, newest first."""
    from_s = None if since is None else time.time() - since
    request = pb.ListHistoryRequest(model=model, limit=limit, since_unix_s=from_s)

    def render(page: Page, answer: pb.ListHistoryResponse) -> int:
        render_history(page, answer, at=time.time(), limit=limit)
        return 0

    session.show(lambda stub: stub.ListHistory(request, timeout=TIMEOUT_S), render, history_json)


def render_history(page: Page, answer: pb.ListHistoryResponse, *, at: float, limit: int) -> None:
    """Trouble of the past is marked, and is no trouble of now."""
    more = ", older ones with --limit" if len(answer.entries) == limit else ""
    page.line(f"data 0 s old · {count(len(answer.entries), 'entry', 'entries')}{more}")
    width = max((len(one.kind) for one in answer.entries), default=0)
    for one in answer.entries:
        bad = one.kind in _TROUBLE
        mark: Piece = ("!! ", "bold red") if bad else ("   ", "")
        lead = f"{moment(one.at_unix_s, now=at, seconds=True):<15} "
        wrapped(page, [(lead, "dim"), mark, (f"{one.kind:<{width}}  ", "")], _told(one))


def _told(one: pb.HistoryEntry) -> str:
    file = f", {one.path}" if one.HasField("path") else ""
    much = f", {size(one.bytes)}" if one.HasField("bytes") else ""
    who = f", by {one.asked_by}" if one.HasField("asked_by") else ""
    text = f": {one.text}" if one.text else ""
    return f"{label(one.model, one.version)}{file}{much}{who}{text}"


def history_json(answer: pb.ListHistoryResponse) -> Json:
    return {
        "schema": "llmgw.mirror-history/1",
        "entries": [
            {
                "at": iso(one.at_unix_s),
                "kind": one.kind,
                "model": one.model,
                "version": one.version,
                "path": opt(one, "path"),
                "asked_by": opt(one, "asked_by"),
                "bytes": opt(one, "bytes"),
                "text": one.text,
            }
            for one in answer.entries
        ],
    }
