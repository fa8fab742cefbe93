"""Versions in files, for a cluster without any network: written, read back, listed."""

import json
import shlex
import sys
import time
from typing import Any

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli import bars
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.exits import EXIT_INTERRUPTED, EXIT_TROUBLE
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession, asked_by
from llmgw_controller.cli.mirror.live import Live
from llmgw_controller.cli.mirror.names import VersionName, label, resolved
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.terminal import say
from llmgw_controller.cli.text import count, duration, iso, joined, moment, size, size_of
from llmgw_kit.text import in_one_line


@click.command("export")
@click.argument("versions", metavar="MODEL@VERSION...", nargs=-1, required=True, type=VersionName())
@click.option("--name", required=True, help="Of the bundle: a file name without folders.")
@click.option("--since", help="Leave out content that this earlier bundle has.")
@click.option("--dry-run", is_flag=True, help="Say how large it would be; nothing is written.")
@click.pass_obj
def export(
    session: MirrorSession, versions: tuple[tuple[str, str], ...], name: str, since: str | None, *,
    dry_run: bool,
) -> None:  # fmt: skip
    """Write versions into one file in the mirror's bundle folder.

    Broken off, the same line goes on where it was."""
    known = [resolved(session, one) for one in versions]
    request = pb.ExportBundleRequest(
        versions=[pb.VersionName(model=one.model, version=one.version) for one in known], name=name,
        since=since, dry_run=dry_run, asked_by=asked_by(),
    )  # fmt: skip
    words = [word for model, version in versions for word in (f"{model}@{version}",)]
    again = ["mirror", "export", *words, "--name", name, *(["--since", since] if since else [])]
    _run(session, lambda stub: stub.ExportBundle(request), "export", again, dry_run=dry_run)


@click.command("import")
@click.argument("name", metavar="BUNDLE")
@click.option("--dry-run", is_flag=True, help="Say what is in it and what is missing; nothing is taken.")
@click.pass_obj
def import_(session: MirrorSession, name: str, *, dry_run: bool) -> None:
    """Take the versions of a bundle in the mirror's bundle folder.

    Every byte is checked. Broken off, the same line goes on where it was."""
    request = pb.ImportBundleRequest(name=name, dry_run=dry_run, asked_by=asked_by())
    again = ["mirror", "import", name]
    _run(session, lambda stub: stub.ImportBundle(request), "import", again, dry_run=dry_run)


def _run(session: MirrorSession, call: Any, what: str, again: list[str], *, dry_run: bool) -> None:
    line = f"llmgwctl {shlex.join(again)}"
    shown = Moving(session, what, dry_run=dry_run)
    try:
        session.follow(call, lambda message: shown.take(message.progress), again=f"to go on: {line}")
    except KeyboardInterrupt:
        say(f"\nbroken off; what was done is kept. To go on: {line}", err=True)
        sys.exit(EXIT_INTERRUPTED)
    shown.finish()


class Moving:
    """A bar with rate and estimate; at the end what the bundle is."""

    def __init__(self, session: MirrorSession, what: str, *, dry_run: bool) -> None:
        self._session = session
        self._what = what
        self._dry_run = dry_run
        self._live = Live()
        self._last: pb.BundleProgress | None = None

    def take(self, one: pb.BundleProgress) -> None:
        self._last = one
        if self._session.output == "json":
            click.echo(json.dumps(progress_json(self._what, one, dry_run=self._dry_run), ensure_ascii=False))
            sys.stdout.flush()
            return
        page = Page(ascii_only=self._session.ascii_only)
        share = one.done_bytes / one.total_bytes if one.total_bytes else None
        told = progress_line(one)
        bar = bars.progress(1.0 if one.done else share, width=20, ascii_only=page.ascii_only)
        page.line((bar, "cyan"), f"  {told}")
        self._live.show(page, line=told, key=str(one.done_files), last=one.done)

    def finish(self) -> None:
        """Exit status 1 where the stream ended without its last message."""
        if self._last is None or not self._last.done:
            say("the mirror ended it before it was done; its log has the story", err=True)
            sys.exit(EXIT_TROUBLE)
        if self._session.output == "json":
            return
        page = Page(ascii_only=self._session.ascii_only)
        if self._last.HasField("bundle"):
            render_bundle(page, self._last.bundle, dry_run=self._dry_run)
        page.print()


def progress_line(one: pb.BundleProgress) -> str:
    told = f"{one.done_files} of {count(one.total_files, 'file')}, {size_of(one.done_bytes, one.total_bytes)}"
    if one.HasField("rate_bytes_s"):
        told += f", {size(one.rate_bytes_s)}/s"
    if one.HasField("eta_s"):
        told += f", about {duration(one.eta_s)}"
    return told + (f", now {one.current_path}" if one.HasField("current_path") else "")


def render_bundle(page: Page, one: pb.Bundle, *, dry_run: bool) -> None:
    dry = " (dry run: nothing was done)" if dry_run else ""
    page.line(f"{one.name}: {count(len(one.versions), 'version')}, {size(one.bytes)}{dry}")
    for version in one.versions:
        page.line(f"   {label(version.model, version.version)}")
    if one.HasField("sha256"):
        page.line(f"   sha256 {one.sha256}")
    if one.HasField("since"):
        wrapped(page, [(" * ", "")], f"importing it needs content of {one.since}, too")


def progress_json(what: str, one: pb.BundleProgress, *, dry_run: bool) -> Json:
    return {
        "schema": f"llmgw.mirror-{what}/1",
        "dry_run": dry_run,
        "done": one.done,
        "done_bytes": one.done_bytes,
        "total_bytes": one.total_bytes,
        "done_files": one.done_files,
        "total_files": one.total_files,
        "path": opt(one, "current_path"),
        "rate_bytes_per_second": opt(one, "rate_bytes_s"),
        "eta_seconds": opt(one, "eta_s"),
        "bundle": bundle_json(one.bundle) if one.HasField("bundle") else None,
    }


@click.command("bundles")
@click.pass_obj
def bundles(session: MirrorSession) -> None:
    """Bundles in the mirror's folder, with what is in them."""

    def render(page: Page, answer: pb.ListBundlesResponse) -> int:
        render_bundles(page, answer, at=time.time())
        return 0

    session.show(
        lambda stub: stub.ListBundles(pb.ListBundlesRequest(), timeout=TIMEOUT_S), render, bundles_json
    )


def render_bundles(page: Page, answer: pb.ListBundlesResponse, *, at: float) -> None:
    if not answer.HasField("folder"):
        page.line("data 0 s old · no bundle folder is configured: nothing can be exported or imported")
        page.line(("next: set bundle_dir in the mirror's configuration", "dim"))
        return
    total = sum(one.bytes for one in answer.bundles)
    told = f"{count(len(answer.bundles), 'bundle')}, {size(total)}, in {answer.folder}"
    wrapped(page, [], in_one_line(f"data 0 s old · {told}"))
    if not answer.bundles:
        page.line(("next: llmgwctl mirror export MODEL@VERSION --name FILE", "dim"))
        return
    columns = [
        Column(""), Column("BUNDLE", most=30), Column("SIZE", right=True), Column("WRITTEN"),
        Column("SINCE", most=16), Column("VERSIONS"),
    ]  # fmt: skip
    table(
        page,
        columns,
        [
            (
                " *" if one.partial else "", one.name, size(one.bytes),
                "broken off" if one.partial else moment(opt(one, "created_at_unix_s"), now=at),
                opt(one, "since") or "-", joined([label(v.model, v.version) for v in one.versions], most=2),
            )
            for one in answer.bundles
        ],
    )  # fmt: skip


def bundle_json(one: pb.Bundle) -> Json:
    return {
        "name": one.name,
        "bytes": one.bytes,
        "created": iso(opt(one, "created_at_unix_s")),
        "versions": [{"model": v.model, "version": v.version} for v in one.versions],
        "since": opt(one, "since"),
        "partial": one.partial,
        "sha256": opt(one, "sha256"),
    }


def bundles_json(answer: pb.ListBundlesResponse) -> Json:
    return {
        "schema": "llmgw.mirror-bundles/1",
        "folder": opt(answer, "folder"),
        "bundles": [bundle_json(one) for one in answer.bundles],
    }
