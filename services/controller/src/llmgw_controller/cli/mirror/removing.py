"""Versions taken out of the mirror, and back again."""

import json
import time
from dataclasses import dataclass

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw.v1 import operator_pb2
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession, asked_by
from llmgw_controller.cli.mirror.names import VersionName, label, resolved, short, typed
from llmgw_controller.cli.mirror.words import version_json
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.text import count, iso, joined, moment, size
from llmgw_kit.errors import Conflict, LlmgwError, NotFound

#: Content of half a terabyte is not unlinked in a moment.
REMOVE_TIMEOUT_S = 180


@dataclass(frozen=True)
class Nodes:
    """Who has the version on a node's disk. `unknown`: why the controller could not say."""

    held: tuple[operator_pb2.NodeWeights, ...]
    unknown: str | None = None

    @property
    def mapped(self) -> list[str]:
        """Replicas that have opened it, with their nodes."""
        return [f"{replica} on {one.node_id}" for one in self.held for replica in one.used_by]

    @property
    def wanted(self) -> bool:
        return any(one.wanted for one in self.held)

    def tell(self, page: Page, model: str) -> None:
        if self.unknown is not None:
            wrapped(page, [(" * ", "")], f"which nodes use it is not known: {self.unknown}")
        if self.held:
            nodes = joined([one.node_id for one in self.held])
            wrapped(page, [(" * ", "")], f"copies stay on {nodes}: llmgwctl weights list --model {model}")
        if self.mapped:
            wrapped(page, [(" * ", "")], f"mapped by {joined(self.mapped)}; they go on with their own copy")
        if self.wanted:
            again = "the catalog names it: its next start on another node fetches it again"
            wrapped(page, [(" * ", "")], again)


def nodes_of(controller: Session, model: str, version: str) -> Nodes:
    """Never raises: without a controller nothing is known, and that is said."""
    request = operator_pb2.ListWeightsRequest(model=model)
    try:
        answer = controller.look(lambda stub: stub.ListWeights(request, timeout=TIMEOUT_S))
    except NotFound:
        return Nodes(())
    except LlmgwError as e:
        return Nodes((), unknown=e.text)
    return Nodes(tuple(one for one in answer.weights if one.version == version))


@click.command("remove")
@click.argument("name", metavar="MODEL@VERSION", type=VersionName())
@click.option("--force", is_flag=True, help="Also while nodes read it, or replicas have it open.")
@click.option("--dry-run", is_flag=True, help="Say what would be freed; nothing is removed.")
@click.option("--now", is_flag=True, help="Free the bytes at once, with no way back.")
@click.pass_obj
def remove(session: MirrorSession, name: tuple[str, str], *, force: bool, dry_run: bool, now: bool) -> None:
    """Take a version out of the mirror.

    It can be restored for a while. Copies on nodes stay: `weights remove` is for those."""
    known = resolved(session, name)
    nodes = nodes_of(session.controller, known.model, known.version)
    if nodes.mapped and not force and not dry_run:
        raise Conflict(
            f"{label(known.model, known.version)} is in use: {joined(nodes.mapped)}",
            code="in_use",
            next_steps=[
                "they go on with their nodes' copies, but a start elsewhere would wait for it",
                f"all the same: llmgwctl mirror remove {typed(known.model, known.version)} --force",
            ],
        )
    request = pb.RemoveVersionRequest(
        model=known.model, version=known.version, force=force, dry_run=dry_run, now=now, asked_by=asked_by()
    )
    answer = session.ask(lambda stub: stub.RemoveVersion(request, timeout=REMOVE_TIMEOUT_S))
    if session.output == "json":
        said = removed_json(known, answer, nodes, dry_run=dry_run)
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    page = Page(ascii_only=session.ascii_only)
    render_removed(page, known, answer, nodes, dry_run=dry_run, at=time.time())
    page.print()


def render_removed(
    page: Page, known: pb.WeightsVersion, answer: pb.RemoveVersionResponse, nodes: Nodes, *, dry_run: bool,
    at: float,
) -> None:  # fmt: skip
    name = label(known.model, known.version)
    until = opt(answer, "restorable_until_unix_s")
    does = "would be removed" if dry_run else "removed"
    if until is None:
        freed = f"{size(answer.freed_bytes)} {'would be ' if dry_run else ''}freed"
    else:
        freed = f"{size(answer.freed_bytes)} come free after {moment(until, now=at)}"
    page.line(f"{name} {does}: {freed}")
    if answer.shared_bytes:
        page.line(f"   {size(answer.shared_bytes)} stay, other versions have them too")
    if answer.readers:
        wrapped(page, [(" * ", "")], f"read at the moment by {joined(list(answer.readers))}")
    nodes.tell(page, known.model)
    if until is not None and not dry_run:
        page.line((f"to take it back: llmgwctl mirror restore {typed(known.model, known.version)}", "dim"))


def removed_json(
    known: pb.WeightsVersion, answer: pb.RemoveVersionResponse, nodes: Nodes, *, dry_run: bool
) -> Json:
    return {
        "schema": "llmgw.mirror-remove/1",
        "model": known.model,
        "version": known.version,
        "dry_run": dry_run,
        "freed_bytes": answer.freed_bytes,
        "shared_bytes": answer.shared_bytes,
        "restorable_until": iso(opt(answer, "restorable_until_unix_s")),
        "readers": list(answer.readers),
        "nodes": [
            {"node": one.node_id, "used_by": list(one.used_by), "wanted": one.wanted} for one in nodes.held
        ],
        "nodes_unknown": nodes.unknown,
    }


@click.command("removed")
@click.pass_obj
def removed(session: MirrorSession) -> None:
    """Removed versions that can be restored, and until when."""

    def render(page: Page, answer: pb.ListRemovedResponse) -> int:
        render_list(page, answer, at=time.time())
        return 0

    session.show(lambda stub: stub.ListRemoved(pb.ListRemovedRequest(), timeout=TIMEOUT_S), render, list_json)


def render_list(page: Page, answer: pb.ListRemovedResponse, *, at: float) -> None:
    rows = sorted(answer.versions, key=lambda one: one.restorable_until_unix_s)
    total = sum(one.bytes for one in rows)
    page.line(f"data 0 s old · {count(len(rows), 'version')} can be restored, {size(total)}")
    if not rows:
        return
    columns = [
        Column("MODEL", most=34), Column("VERSION", most=12), Column("SIZE", right=True), Column("REMOVED"),
        Column("BY", most=16), Column("GONE AFTER"),
    ]  # fmt: skip
    table(
        page,
        columns,
        [
            (
                one.model, short(one.version), size(one.bytes), moment(one.removed_at_unix_s, now=at),
                opt(one, "asked_by") or "-", moment(one.restorable_until_unix_s, now=at),
            )
            for one in rows
        ],
    )  # fmt: skip
    page.line((f"next: llmgwctl mirror restore {typed(rows[0].model, rows[0].version)}", "dim"))


def list_json(answer: pb.ListRemovedResponse) -> Json:
    return {
        "schema": "llmgw.mirror-removed/1",
        "versions": [
            {
                "model": one.model,
                "version": one.version,
                "bytes": one.bytes,
                "removed": iso(one.removed_at_unix_s),
                "restorable_until": iso(one.restorable_until_unix_s),
                "asked_by": opt(one, "asked_by"),
            }
            for one in answer.versions
        ],
    }


@click.command("restore")
@click.argument("name", metavar="MODEL@VERSION", type=VersionName())
@click.pass_obj
def restore(session: MirrorSession, name: tuple[str, str]) -> None:
    """Take a removal back, as long as its bytes are here."""
    one = _removed(session, name)
    request = pb.RestoreVersionRequest(model=one.model, version=one.version, asked_by=asked_by())
    answer = session.ask(lambda stub: stub.RestoreVersion(request, timeout=REMOVE_TIMEOUT_S))
    if session.output == "json":
        said = {"schema": "llmgw.mirror-restore/1", "version": version_json(answer.version)}
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    page = Page(ascii_only=session.ascii_only)
    page.line(f"{label(one.model, one.version)} restored: {size(one.bytes)}")
    page.line((f"next: llmgwctl mirror verify {typed(one.model, one.version)}", "dim"))
    page.print()


def _removed(session: MirrorSession, name: tuple[str, str]) -> pb.RemovedVersion:
    """By the beginning of its version. Raises NotFound, or Conflict where several begin so."""
    model, version = name
    answer = session.ask(lambda stub: stub.ListRemoved(pb.ListRemovedRequest(), timeout=TIMEOUT_S))
    found = [one for one in answer.versions if one.model == model and one.version == version]
    found = found or [
        one for one in answer.versions if one.model == model and one.version.startswith(version)
    ]
    if not found:
        raise NotFound(
            f"no removed version {label(model, version)} can be restored",
            code="version_not_found",
            next_steps=["what can be: llmgwctl mirror removed"],
        )
    if len(found) > 1:
        raise Conflict(
            f"{version!r} begins {len(found)} removed versions of {model!r}",
            code="ambiguous_version",
            next_steps=[f"give more of it: {joined([one.version for one in found])}"],
        )
    return found[0]
