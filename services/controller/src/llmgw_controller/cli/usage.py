"""`llmgwctl usage`: what was used, by key, model, tenant or router."""

import time
from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.as_json import head, opt
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.text import count, duration
from llmgw_controller.cli.times import Span
from llmgw_controller.cli.views.common import first_line

_BY = {
    "key": pb.USAGE_BY_KEY,
    "model": pb.USAGE_BY_MODEL,
    "tenant": pb.USAGE_BY_TENANT,
    "router": pb.USAGE_BY_ROUTER,
}
DAY_S = 86_400.0


@click.command()
@click.option("--by", type=click.Choice(list(_BY)), default="key", show_default=True)
@click.option("--since", type=Span(), default=DAY_S, help="How far back: 90s, 15m, 3h, 7d; else 1d.")
@click.pass_obj
def usage(session: Session, by: str, since: float) -> None:
    """Requests and tokens used, by whom or by what.

    The most stands first; what engines did not tell is marked."""
    request = pb.GetUsageRequest(by=_BY[by], since_unix_s=time.time() - since)

    def render(page: Page, answer: pb.GetUsageResponse) -> int:
        render_usage(page, answer, by, since)
        return 0

    session.show(
        lambda stub: stub.GetUsage(request, timeout=10), render, lambda answer: usage_json(answer, by, since)
    )


def render_usage(page: Page, answer: pb.GetUsageResponse, by: str, since: float) -> None:
    requests = sum(one.requests for one in answer.sums)
    tokens = sum(one.prompt_tokens + one.output_tokens for one in answer.sums)
    told = f"{count(requests, 'request')}, {tokens} tokens in {duration(since)}"
    first_line(page, answer.info, told)
    if not answer.sums:
        page.line("nothing was used in that time, or no router writes it: database_url says where")
        return
    columns = [
        Column(by.upper(), most=32), Column("REQUESTS", right=True), Column("PROMPT", right=True),
        Column("CACHED", right=True), Column("OUTPUT", right=True), Column("CUT", right=True),
        Column("UNKNOWN", right=True),
    ]  # fmt: skip
    rows = [
        (
            one.name if one.HasField("name") else "-",
            str(one.requests),
            str(one.prompt_tokens),
            str(one.cached_tokens),
            f"{one.output_tokens}{'~' if one.estimated_tokens else ''}",
            str(one.interrupted),
            str(one.unknown),
        )
        for one in answer.sums
    ]
    table(page, columns, rows)
    estimated = sum(one.estimated_tokens for one in answer.sums)
    if estimated:
        wrapped(page, [("~ ", "")], f"{estimated} tokens were counted or guessed, not told by an engine")


def usage_json(answer: pb.GetUsageResponse, by: str, since: float) -> dict[str, Any]:
    sums = [
        {
            by: opt(one, "name"),
            "requests": one.requests,
            "interrupted": one.interrupted,
            "unknown": one.unknown,
            "prompt_tokens": one.prompt_tokens,
            "cached_tokens": one.cached_tokens,
            "output_tokens": one.output_tokens,
            "estimated_tokens": one.estimated_tokens,
        }
        for one in answer.sums
    ]
    return head("usage", answer.info) | {"by": by, "since_seconds": since, "usage": sums}
