"""`llmgwctl weights`: what the nodes hold on their disks, brought there and removed."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.as_json import head
from llmgw_controller.cli.exits import EXIT_TROUBLE
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.text import count, joined, size
from llmgw_controller.cli.views.common import first_line

#: A version of half a terabyte is not unlinked in a moment.
REMOVE_TIMEOUT_S = 180
PREFETCH_TIMEOUT_S = 60

#: Versions are commit hashes as often as words: so much of one tells it from the others; JSON has all.
_VERSION_MOST = 10


@click.group(cls=Commands)
def weights() -> None:
    """Weights on the nodes' disks."""


@weights.command("list")
@click.option("--node", help="Only this node's.")
@click.option("--model", help="Only this model's.")
@click.pass_obj
def weights_list(session: Session, node: str | None, model: str | None) -> None:
    """Who holds what, who uses it, what is on its way.

    And what nobody wants any more."""

    def render(page: Page, answer: pb.ListWeightsResponse) -> int:
        return render_list(page, answer)

    request = pb.ListWeightsRequest(node_id=node, model=model)
    session.show(lambda stub: stub.ListWeights(request, timeout=10), render, list_json)


@weights.command("prefetch")
@click.argument("model")
@click.option("--node", "nodes", multiple=True, help="Only to this node; repeatable.")
@click.option("--dry-run", is_flag=True, help="Say where to; nothing is fetched.")
@click.pass_obj
def weights_prefetch(session: Session, model: str, nodes: tuple[str, ...], *, dry_run: bool) -> None:
    """Bring MODEL's weights to nodes that could run it.

    Nothing is started."""
    request = pb.PrefetchWeightsRequest(model=model, node_ids=nodes, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.PrefetchWeights(request, timeout=PREFETCH_TIMEOUT_S))
    if session.output == "json":
        click.echo(json.dumps(changes_json("weights-prefetch", answer, dry_run=dry_run), ensure_ascii=False))
    else:
        page = Page(ascii_only=session.ascii_only)
        page.line(f"{answer.model} {answer.version}{_dry(dry_run)}")
        _changes(page, answer.changes)
        if not dry_run and any(change.outcome == "asked" for change in answer.changes):
            page.line((f"next: llmgwctl weights list --model {answer.model}", "dim"))
        page.print()
    sys.exit(_exit_of(answer.changes))


@weights.command("remove")
@click.argument("model")
@click.argument("version")
@click.option("--node", "nodes", multiple=True, help="Only from this node; repeatable.")
@click.option(
    "--force",
    is_flag=True,
    help="Also under an engine that has opened it: its bytes come free when it ends. Never during a start.",
)
@click.option("--dry-run", is_flag=True, help="Say from where; nothing is removed.")
@click.pass_obj
def weights_remove(
    session: Session, model: str, version: str, nodes: tuple[str, ...], *, force: bool, dry_run: bool
) -> None:
    """Delete VERSION of MODEL from nodes.

    Refused as a whole while an engine uses it on one of them.

    VERSION may be its first characters, four at least, where they name one alone."""
    request = pb.RemoveWeightsRequest(
        model=model, version=version, node_ids=nodes, force=force, dry_run=dry_run
    )
    answer = session.ask(lambda stub: stub.RemoveWeights(request, timeout=REMOVE_TIMEOUT_S))
    if session.output == "json":
        said = changes_json("weights-remove", answer, dry_run=dry_run)
        click.echo(json.dumps(said | {"freed_bytes": answer.freed_bytes}, ensure_ascii=False))
    else:
        page = Page(ascii_only=session.ascii_only)
        freed = "" if dry_run else f": {size(answer.freed_bytes)} freed"
        page.line(f"{answer.model} {answer.version}{freed}{_dry(dry_run)}")
        _changes(page, answer.changes)
        page.print()
    sys.exit(_exit_of(answer.changes))


def _dry(dry_run: bool) -> str:  # noqa: FBT001 - the flag as it was typed
    return " (dry run: nothing was done)" if dry_run else ""


def _exit_of(changes: Sequence[pb.WeightsChange]) -> int:
    return EXIT_TROUBLE if any(change.outcome in ("refused", "failed") for change in changes) else 0


def _changes(page: Page, changes: Sequence[pb.WeightsChange]) -> None:
    width = max((len(change.node_id) for change in changes), default=0)
    for change in changes:
        bad = change.outcome in ("refused", "failed")
        lead: list[Piece] = [("!! " if bad else "   ", "bold red" if bad else "")]
        wrapped(page, [*lead, (f"{change.node_id:<{width}}  {change.outcome:<7}  ", "")], change.text)


def changes_json(name: str, answer: Any, *, dry_run: bool) -> dict[str, Any]:
    return {
        "schema": f"llmgw.{name}/1",
        "model": answer.model,
        "version": answer.version,
        "dry_run": dry_run,
        "changes": [
            {
                "node": change.node_id,
                "outcome": change.outcome,
                "text": change.text,
                "freed_bytes": change.freed_bytes if change.HasField("freed_bytes") else None,
            }
            for change in answer.changes
        ],
    }


def render_list(page: Page, answer: pb.ListWeightsResponse) -> int:
    """By node. Exit status 1 when a fetch has failed."""
    rows = sorted(answer.weights, key=lambda one: (one.node_id, one.model, one.version))
    total = sum(one.bytes for one in rows)
    nodes = {one.node_id: one for one in rows}
    first_line(
        page, answer.info, f"{count(len(rows), 'version')} on {count(len(nodes), 'node')}, {size(total)}"
    )
    if not rows:
        page.line("no node holds any weights; to bring some there: llmgwctl weights prefetch MODEL")
        return 0
    columns = [
        Column(""), Column("NODE", most=12), Column("MODEL", most=20), Column("VERSION", most=_VERSION_MOST),
        Column("SIZE", right=True), Column("STATE", most=14), Column("USED BY", most=12), Column("WANTED"),
    ]  # fmt: skip
    table(
        page,
        columns,
        [
            (
                ("!!", "bold red") if one.HasField("error") else "  ", one.node_id, one.model, one.version,
                size(one.bytes), state(one), joined(list(one.used_by), most=1) or "nobody",
                "yes" if one.wanted else "no",
            )
            for one in rows
        ],
    )  # fmt: skip
    for one in rows:
        if one.HasField("error"):
            wrapped(page, [("!! ", "bold red"), (f"{one.model} on {one.node_id}: ", "")], one.error)
    free = [
        f"{node} {size(one.disk_free_bytes)}"
        for node, one in nodes.items()
        if one.HasField("disk_free_bytes")
    ]
    if free:
        wrapped(page, [("Disk free  ", "dim")], " · ".join(free))
    spare = [one for one in rows if not one.wanted and not one.used_by and not one.fetching]
    if spare:
        freed = sum(one.bytes for one in spare)
        page.line((f"Nobody wants {count(len(spare), 'of them', 'of them')}, {size(freed)}.", ""))
        page.line((f"next: llmgwctl weights remove {spare[0].model} {spare[0].version} --dry-run", "dim"))
    return EXIT_TROUBLE if any(one.HasField("error") for one in rows) else 0


def state(one: pb.NodeWeights) -> str:
    if one.fetching:
        return f"fetching {one.progress * 100:.0f} %" if one.HasField("progress") else "fetching"
    if one.HasField("error"):
        return "FAILED"
    return "complete" if one.complete else "partial"


def list_json(answer: pb.ListWeightsResponse) -> dict[str, Any]:
    return head("weights", answer.info) | {
        "weights": [
            {
                "node": one.node_id,
                "model": one.model,
                "version": one.version,
                "bytes": one.bytes,
                "complete": one.complete,
                "fetching": one.fetching,
                "progress": one.progress if one.HasField("progress") else None,
                "error": one.error if one.HasField("error") else None,
                "used_by": list(one.used_by),
                "wanted": one.wanted,
                "disk_free_bytes": one.disk_free_bytes if one.HasField("disk_free_bytes") else None,
            }
            for one in answer.weights
        ]
    }
