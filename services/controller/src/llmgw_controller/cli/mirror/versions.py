"""What is in the mirror: versions, their files and proofs, and every byte of one read again."""

import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli import bars
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.exits import EXIT_INTERRUPTED, EXIT_TROUBLE
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession, asked_by
from llmgw_controller.cli.mirror.downloads import summary
from llmgw_controller.cli.mirror.live import Live
from llmgw_controller.cli.mirror.names import ModelName, VersionName, label, resolved, short, typed
from llmgw_controller.cli.mirror.words import file_word, odd, proof, state, version_json
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.terminal import say
from llmgw_controller.cli.text import count, iso, joined, size, size_of


@click.command("versions")
@click.argument("model", required=False, type=ModelName())
@click.option("--files", "with_files", is_flag=True, help="Each file, and what it was proved by.")
@click.pass_obj
def versions(session: MirrorSession, model: str | None, *, with_files: bool) -> None:
    """Versions in the mirror, all or MODEL's, whole or on their way."""
    request = pb.ListVersionsRequest(model=model)

    def render(page: Page, answer: pb.ListVersionsResponse) -> int:
        return render_versions(page, answer, with_files=with_files, model=model)

    session.show(
        lambda stub: stub.ListVersions(request, timeout=TIMEOUT_S),
        render,
        lambda answer: versions_json(answer, model=model),
    )


def render_versions(
    page: Page, answer: pb.ListVersionsResponse, *, with_files: bool = False, model: str | None = None
) -> int:
    """Exit status 1 where one has failed, or none is of the `model` that was asked for. Content that two
    versions share is in the size of both, once on the disk."""
    rows = sorted(answer.versions, key=lambda one: (one.state, one.model, one.version))
    held = sum(one.received_bytes for one in rows)
    told = [f"data 0 s old · {count(len(rows), 'version')} of {count(len({r.model for r in rows}), 'model')}"]
    told.append(size(held))
    if answer.HasField("disk_total_bytes") and answer.HasField("disk_free_bytes"):
        used = answer.disk_total_bytes - answer.disk_free_bytes
        told.append(f"disk {size_of(used, answer.disk_total_bytes)}")
    page.line(" · ".join(told))
    if not rows and model is not None:
        page.line(f"no version of {model!r} is here")
        page.line(("next: llmgwctl mirror versions", "dim"))
        page.line(("or, if it was removed: llmgwctl mirror removed", "dim"))
        return EXIT_TROUBLE
    if not rows:
        page.line("no version is here")
        page.line(("next: llmgwctl mirror search WORDS", "dim"))
        return 0
    columns = [
        Column(""), Column("MODEL", most=34), Column("VERSION", most=18), Column("STATE"),
        Column("FILES", right=True), Column("SIZE", right=True), Column("PROVED"),
        Column("READ BY", most=14),
    ]  # fmt: skip
    table(
        page,
        columns,
        [
            (
                _mark(one), one.model,
                short(one.version), _state(one), str(len(one.files)), size(opt(one, "total_bytes")),
                (iso(opt(one, "verified_at_unix_s")) or "-")[:10],
                joined(list(one.readers), most=1) or "nobody",
            )
            for one in rows
        ],
    )  # fmt: skip
    if with_files:
        for one in rows:
            page.blank()
            _files(page, one)
    failed = [one for one in rows if one.state == pb.WEIGHTS_STATE_FAILED]
    for one in failed:
        wrapped(page, [("!! ", "bold red"), (f"{label(one.model, one.version)}: ", "")], summary(one))
    for one in rows:
        if one.warnings:
            page.line(f"{label(one.model, one.version)}:")
            odd(page, one)
    if failed:
        page.line(("next: llmgwctl mirror downloads", "dim"))
    return EXIT_TROUBLE if failed else 0


def _mark(one: pb.WeightsVersion) -> Piece:
    if one.state == pb.WEIGHTS_STATE_FAILED:
        return ("!!", "bold red")
    return (" *", "") if one.warnings else ("", "")


def _state(one: pb.WeightsVersion) -> str:
    word = state(one.state)
    return word.upper() if one.state == pb.WEIGHTS_STATE_FAILED else word


def _files(page: Page, one: pb.WeightsVersion) -> None:
    came = ""
    if one.HasField("repository"):
        came = f", from {one.repository.id} at {short(one.repository.commit)}"
    page.line(f"{label(one.model, one.version)}{came}")
    columns = [
        Column("FILE", most=40), Column("STATE"), Column("SIZE", right=True), Column("PROVED BY"),
        Column("SHA256", most=12),
    ]  # fmt: skip
    rows = [
        (
            file.path,
            file_word(file),
            size(opt(file, "size_bytes")),
            proof(file),
            (opt(file, "sha256") or "-")[:12],
        )
        for file in one.files
    ]
    table(page, columns, rows, indent="  ")


def versions_json(answer: pb.ListVersionsResponse, *, model: str | None = None) -> Json:
    failed = any(one.state == pb.WEIGHTS_STATE_FAILED for one in answer.versions)
    return {
        "schema": "llmgw.mirror-versions/1",
        "versions": [version_json(one) for one in answer.versions],
        "disk_total_bytes": opt(answer, "disk_total_bytes"),
        "disk_free_bytes": opt(answer, "disk_free_bytes"),
        "exit_code": EXIT_TROUBLE if failed or (model is not None and not answer.versions) else 0,
    }


@click.command("verify")
@click.argument("name", metavar="MODEL@VERSION", type=VersionName())
@click.option("--file", "paths", multiple=True, help="Only this file; repeatable.")
@click.pass_obj
def verify(session: MirrorSession, name: tuple[str, str], paths: tuple[str, ...]) -> None:
    """Read every byte of a version again and compare its checksums.

    What is rotten is set aside, never served, and fetched again where its source is known."""
    known = resolved(session, name)
    request = pb.VerifyVersionRequest(
        model=known.model, version=known.version, paths=paths, asked_by=asked_by()
    )
    shown = Verifying(session, known, paths)
    try:
        session.follow(
            lambda stub: stub.VerifyVersion(request), shown.take,
            again=f"from the beginning: llmgwctl mirror verify {typed(known.model, known.version)}",
        )  # fmt: skip
    except KeyboardInterrupt:
        say("\nstopped: files named above were read to their end, the others were not", err=True)
        sys.exit(EXIT_INTERRUPTED)
    shown.finish()


class Verifying:
    """A bar over all files, and a line for each that is wrong."""

    def __init__(self, session: MirrorSession, known: pb.WeightsVersion, paths: Sequence[str]) -> None:
        self._session = session
        self._known = known
        chosen = [file for file in known.files if not paths or file.path in paths]
        self._of = {file.path: file.size_bytes for file in chosen}
        self._read: dict[str, int] = {}
        self._done: dict[str, str | None] = {}
        self._live = Live()

    def take(self, message: pb.VerifyVersionResponse) -> None:
        self._of[message.path] = message.total_bytes
        self._read[message.path] = message.read_bytes
        if message.done:
            self._done[message.path] = opt(message, "trouble")
        if self._session.output == "json":
            said = {
                "schema": "llmgw.mirror-verify/1", "path": message.path, "read_bytes": message.read_bytes,
                "total_bytes": message.total_bytes, "done": message.done, "trouble": opt(message, "trouble"),
            }  # fmt: skip
            click.echo(json.dumps(said, ensure_ascii=False))
            sys.stdout.flush()
            return
        self._show(message.path, last=False)

    def _show(self, path: str, *, last: bool) -> None:
        page = Page(ascii_only=self._session.ascii_only)
        whole, read = sum(self._of.values()), sum(self._read.values())
        bad = {path: trouble for path, trouble in self._done.items() if trouble is not None}
        for wrong, trouble in bad.items():
            wrapped(page, [("!! ", "bold red"), (f"{wrong}: ", "")], trouble)
        bar = bars.progress(read / whole if whole else None, width=20, ascii_only=page.ascii_only)
        told = f"{len(self._done)} of {count(len(self._of), 'file')}, {size_of(read, whole)}"
        page.line(("", ""), (bar, "cyan"), f"  {told}", ("" if last else f", now {path}", "dim"))
        fresh = self._done.get(path)
        line = f"!! {path}: {fresh}" if fresh is not None else f"{told}, now {path}"
        self._live.show(page, line=line, key=str(len(self._done)), last=last)

    def finish(self) -> NoReturn:
        bad = [path for path, trouble in self._done.items() if trouble is not None]
        if self._session.output != "json":
            if self._live.on_screen:
                self._show("", last=True)
            name = label(self._known.model, self._known.version)
            if bad:
                say(f"{name}: {count(len(bad), 'file')} of {len(self._done)} not as published")
                say("next: llmgwctl mirror downloads")
            else:
                say(f"{name}: every byte of {count(len(self._done), 'file')} is right")
        sys.exit(EXIT_TROUBLE if bad else 0)
