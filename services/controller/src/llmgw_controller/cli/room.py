"""The commands on room: what could be let go, who has left for whom, and what was asked for in vain."""

import time

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import as_json_room
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.times import Span
from llmgw_controller.cli.views import demand as demand_view
from llmgw_controller.cli.views import evictions as evictions_view
from llmgw_controller.cli.views import reclaim as reclaim_view


@click.command()
@click.option("--plan", "planned", is_flag=True, help="Say what could go; nothing is changed.")
@click.option("--apply", "applied", is_flag=True, help="Let go what is idle beyond doubt, judged anew.")
@click.option("--idle", type=Span(), help="Only what nobody asked for so long: 90m, 6h, 3d.")
@click.option("--model", help="Only this model's.")
@click.pass_obj
def reclaim(session: Session, *, planned: bool, applied: bool, idle: float | None, model: str | None) -> None:
    """What can be stopped: idle replicas.

    Most GPU-hours first, with the cost of bringing each back."""
    if planned == applied:
        given = "both of --plan and --apply are" if planned else "neither --plan nor --apply is"
        raise click.UsageError(f"{given} given; expected one of them\n  try: llmgwctl reclaim --plan")
    if idle is not None and idle <= 0:
        raise click.UsageError(
            "--idle is 0; expected a span above 0\n  try: llmgwctl reclaim --plan --idle 6h"
        )
    request = pb.ReclaimRequest(apply=applied, idle_s=idle, model=model)
    again = " ".join(
        [
            "llmgwctl reclaim --apply",
            *([f"--idle {idle:g}s"] if idle is not None else []),
            *([f"--model {model}"] if model is not None else []),
        ]
    )

    def render(page: Page, answer: pb.ReclaimResponse) -> int:
        reclaim_view.render(page, answer, applied=applied, again=again)
        return 0

    if applied and session.watch:
        raise click.UsageError("--watch with --apply would let go again and again\n  try: it with --plan")
    session.show(
        lambda stub: stub.Reclaim(request, timeout=10),
        render,
        lambda answer: as_json_room.reclaim(answer, applied=applied),
    )


@click.command()
@click.option("--since", type=Span(), help="Only this far back: 90s, 15m, 3h, 7d.")
@click.option("--model", help="Only those that this model left or got room by.")
@click.pass_obj
def evictions(session: Session, *, since: float | None, model: str | None) -> None:
    """Receipts: who left for whom, and why.

    On what evidence, and what it cost."""

    def render(page: Page, answer: pb.ListEvictionsResponse) -> int:
        evictions_view.render(page, answer)
        return 0

    request = pb.ListEvictionsRequest(model=model)
    if since is not None:
        request.since_unix_s = time.time() - since
    session.show(lambda stub: stub.ListEvictions(request, timeout=10), render, as_json_room.evictions)


@click.command()
@click.option("--model", help="Only this name, also one that is no model.")
@click.pass_obj
def demand(session: Session, model: str | None) -> None:
    """What was asked for that was not up.

    Per model: held, served, refused, first and last asked; the other side of `reclaim`."""

    def render(page: Page, answer: pb.DemandResponse) -> int:
        demand_view.render(page, answer)
        return 0

    request = pb.DemandRequest(model=model)
    session.show(lambda stub: stub.Demand(request, timeout=10), render, as_json_room.demand)


ALL = (reclaim, evictions, demand)
