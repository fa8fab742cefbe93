"""The commands that set a node aside, empty it, take it back, and give up one that is gone."""

from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.changed import DRY_RUN, tell
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.session import Commands, Session

_REASON = click.option("--reason", metavar="TEXT", help="One line, such as who and why; shown in `nodes`.")


@click.group(cls=Commands)
def node() -> None:
    """Set nodes aside, empty them, give them up."""


@node.command("cordon")
@click.argument("name")
@_REASON
@DRY_RUN
@click.pass_obj
def node_cordon(session: Session, name: str, reason: str | None, *, dry_run: bool) -> None:
    """Place nothing new on a node; what runs there stays."""
    request = pb.CordonNodeRequest(node_id=name, reason=reason, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.CordonNode(request, timeout=10))
    _print(session, "llmgw.node-cordon/1", answer.change, dry_run=dry_run)


@node.command("uncordon")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@DRY_RUN
@click.pass_obj
def node_uncordon(session: Session, names: tuple[str, ...], *, dry_run: bool) -> None:
    """Take cordoned or draining nodes back. All that are named, or none."""
    request = pb.UncordonNodeRequest(node_id=names[0], more_node_ids=names[1:], dry_run=dry_run)
    answer = session.ask(lambda stub: stub.UncordonNode(request, timeout=10))
    for change in (answer.change, *answer.more):
        _print(session, "llmgw.node-uncordon/1", change, dry_run=dry_run)


@node.command("drain")
@click.argument("name")
@_REASON
@DRY_RUN
@click.pass_obj
def node_drain(session: Session, name: str, reason: str | None, *, dry_run: bool) -> None:
    """Move what runs on a node elsewhere, where there is room.

    It takes nothing new until `uncordon`."""
    request = pb.DrainNodeRequest(node_id=name, reason=reason, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.DrainNode(request, timeout=10))
    steps = [
        {"replica": step.replica_id, "outcome": step.outcome, "text": step.text} for step in answer.steps
    ]
    if session.output == "json":
        _print(session, "llmgw.node-drain/1", answer.change, dry_run=dry_run, steps=steps)
        return
    page = Page(ascii_only=session.ascii_only)
    render_drain(page, answer, dry_run=dry_run)
    page.print()


def render_drain(page: Page, answer: pb.DrainNodeResponse, *, dry_run: bool) -> None:
    """What it comes to, then each replica once."""
    wrapped(page, [("dry run: " if dry_run else "", "")], answer.change.text)
    name_width = max((len(step.replica_id) for step in answer.steps), default=0)
    outcome_width = max((len(step.outcome) for step in answer.steps), default=0)
    for step in answer.steps:
        lead = f"  {step.replica_id:<{name_width}}  {step.outcome:<{outcome_width}}  "
        wrapped(page, [(lead, "")], step.text)
    for warning in answer.change.warnings:
        wrapped(page, [(" * ", "")], warning)
    if answer.steps and not dry_run:
        page.line(("next: llmgwctl replicas --watch", "dim"))


@node.command("confirm-lost")
@click.argument("name")
@DRY_RUN
@click.pass_obj
def node_confirm_lost(session: Session, name: str, *, dry_run: bool) -> None:
    """Give up a silent node now, whatever timer and brake say.

    Its replicas go elsewhere."""
    request = pb.ConfirmLostRequest(node_id=name, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.ConfirmLost(request, timeout=10))
    _print(session, "llmgw.node-confirm-lost/1", answer.change, dry_run=dry_run)


def _print(session: Session, schema: str, change: pb.NodeChange, *, dry_run: bool, **more: Any) -> None:
    said = {
        "schema": schema,
        "node": change.node_id,
        "outcome": change.outcome,
        "dry_run": dry_run,
        "text": change.text,
        "replicas": list(change.replica_ids),
        "warnings": list(change.warnings),
    }
    tell(session, said | more, change.text, dry_run=dry_run, warnings=change.warnings)
