"""The commands on routers: who counts for idleness, and forgetting one that will not come back."""

from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.as_json import head
from llmgw_controller.cli.changed import DRY_RUN, tell
from llmgw_controller.cli.exits import EXIT_TROUBLE
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.text import ago, count, duration, iso
from llmgw_controller.cli.views.common import first_line


@click.group(cls=Commands)
def router() -> None:
    """Routers: members of the fleet that idleness needs a word of."""


@router.command("list")
@click.pass_obj
def router_list(session: Session) -> None:
    """Every member: how old its word is, what it carries.

    And whether it watches the routes."""

    def render(page: Page, answer: pb.ListRoutersResponse) -> int:
        render_routers(page, answer)
        return EXIT_TROUBLE if any(_is_gone(one) for one in answer.routers) else 0

    session.show(lambda stub: stub.ListRouters(pb.ListRoutersRequest(), timeout=10), render, routers_json)


@router.command("forget")
@click.argument("name", metavar="ID")
@DRY_RUN
@click.pass_obj
def router_forget(session: Session, name: str, *, dry_run: bool) -> None:
    """Take a dead router out of the membership.

    Its death counts as an ask for every replica."""
    request = pb.ForgetRouterRequest(router_id=name, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.ForgetRouter(request, timeout=10))
    said = {
        "schema": "llmgw.router-forget/1",
        "router": answer.router_id,
        "dry_run": dry_run,
        "text": answer.text,
    }
    tell(session, said, answer.text, dry_run=dry_run)


def render_routers(page: Page, answer: pb.ListRoutersResponse) -> None:
    """Those of whom nothing is heard first."""
    now = answer.info.at_unix_s
    rows = sorted(
        answer.routers, key=lambda one: (not _is_gone(one), one.HasField("report_age_s"), one.router_id)
    )
    heard = sum(one.HasField("report_age_s") for one in rows)
    first_line(page, answer.info, f"{count(len(rows), 'router')}, {heard} heard")
    if not rows:
        page.line("no router has joined; each one needs --controller with a controller's address")
        return
    columns = [
        Column(""),
        Column("ROUTER", most=32),
        Column("REPORT", right=True),
        Column("WATCHES"),
        Column("APPLIED", right=True),
        Column("IN FLIGHT", right=True),
        Column("HELD", right=True),
        Column("JOINED"),
    ]
    table(
        page,
        columns,
        [
            (
                _mark(one),
                one.router_id,
                duration(one.report_age_s) if one.HasField("report_age_s") else "-",
                "yes" if one.watching else "no",
                str(one.applied_version) if one.HasField("applied_version") else "-",
                str(one.in_flight) if one.HasField("in_flight") else "-",
                str(one.held),
                ago(one.seen_unix_s, now=now),
            )
            for one in rows
        ],
    )
    for one in rows:
        if one.HasField("crashed_unix_s"):
            told = f"came back {ago(one.crashed_unix_s, now=now)} without a goodbye; that counts as an ask"
            wrapped(page, [(f"{one.router_id}: ", "dim")], told)
    gone = [one.router_id for one in rows if _is_gone(one)]
    if gone:
        wrapped(page, [], "Nothing counts as idle without the word of every member.")
        page.line(f"Next, if it will not come back: llmgwctl router forget {gone[0]}")


def routers_json(answer: pb.ListRoutersResponse) -> dict[str, Any]:
    def opt(row: pb.RouterRow, field: str) -> Any:
        return getattr(row, field) if row.HasField(field) else None  # type: ignore[arg-type]

    return head("routers", answer.info) | {
        "exit_code": 1 if any(_is_gone(one) for one in answer.routers) else 0,
        "routers": [
            {
                "id": one.router_id,
                "incarnation": one.incarnation,
                "joined": iso(one.seen_unix_s),
                "report_age_seconds": opt(one, "report_age_s"),
                "watching": one.watching,
                "applied_version": opt(one, "applied_version"),
                "crashed": iso(opt(one, "crashed_unix_s")),
                "in_flight": opt(one, "in_flight"),
                "held": one.held,
                "gone": _is_gone(one),
            }
            for one in sorted(answer.routers, key=lambda one: one.router_id)
        ],
    }


def _is_gone(one: pb.RouterRow) -> bool:
    """Neither watches nor reports: idleness waits for it."""
    return not one.watching and not one.HasField("report_age_s")


def _mark(one: pb.RouterRow) -> Piece:
    if _is_gone(one):
        return ("!!", "bold red")
    return ("", "") if one.watching and one.HasField("report_age_s") else (" *", "")
