"""The commands that set a node aside and take it back."""

import json

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.page import Page, wrapped
from llmgw_controller.cli.session import Commands, Session


@click.group(cls=Commands)
def node() -> None:
    """Set nodes aside."""


@node.command("cordon")
@click.argument("name")
@click.option("--reason", metavar="TEXT", help="One line for the events, such as who and why.")
@click.pass_obj
def node_cordon(session: Session, name: str, reason: str | None) -> None:
    """Place nothing new on a node; what runs there stays."""
    request = pb.CordonNodeRequest(node_id=name, reason=reason)
    answer = session.ask(lambda stub: stub.CordonNode(request, timeout=10))
    _print(session, "llmgw.node-cordon/1", answer.change)


@node.command("uncordon")
@click.argument("name")
@click.pass_obj
def node_uncordon(session: Session, name: str) -> None:
    """Take a cordoned node back."""
    answer = session.ask(lambda stub: stub.UncordonNode(pb.UncordonNodeRequest(node_id=name), timeout=10))
    _print(session, "llmgw.node-uncordon/1", answer.change)


def _print(session: Session, schema: str, change: pb.NodeChange) -> None:
    if session.output == "json":
        said = {
            "schema": schema,
            "node": change.node_id,
            "outcome": change.outcome,
            "text": change.text,
            "replicas": list(change.replica_ids),
            "warnings": list(change.warnings),
        }
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    page = Page(ascii_only=session.ascii_only)
    wrapped(page, [], change.text)
    for warning in change.warnings:
        wrapped(page, [(" * ", "")], warning)
    page.print()
