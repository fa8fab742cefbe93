"""`llmgwctl mirror fetch`: a repository's files brought here, tried again, or stopped."""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.exits import EXIT_INTERRUPTED, EXIT_TROUBLE
from llmgw_controller.cli.mirror.client import REGISTRY_TIMEOUT_S, TIMEOUT_S, MirrorSession, asked_by
from llmgw_controller.cli.mirror.downloads import cap_line, summary, version_lines
from llmgw_controller.cli.mirror.fleet import Fleet, fleet_of
from llmgw_controller.cli.mirror.live import Live
from llmgw_controller.cli.mirror.names import VersionName, label, resolved, typed
from llmgw_controller.cli.mirror.words import offer, repository_json, version_json, warn, warning_json
from llmgw_controller.cli.page import Page
from llmgw_controller.cli.terminal import say
from llmgw_controller.cli.text import count, size

#: Stopping waits for what is being written at the moment.
CANCEL_TIMEOUT_S = 60


@click.command("fetch")
@click.argument("repository", required=False)
@click.option("--revision", help="A branch, tag or commit; main unless given.")
@click.option(
    "--group", "groups", multiple=True, help="A group of `mirror files`; repeatable. Else the best."
)
@click.option("--file", "paths", multiple=True, help="Only this file; repeatable.")
@click.option("--as", "name", type=VersionName(), help="Keep it under this name; else REPOSITORY@COMMIT.")
@click.option("--accept", "accepted", multiple=True, metavar="CODE", help="Take a warning that blocks.")
@click.option("--dry-run", is_flag=True, help="Say what would come and what will break.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until all of it is here.")
@click.option("--retry", type=VersionName(), help="Failed or stopped files of this version again, at once.")
@click.option("--cancel", type=VersionName(), help="Stop what is on its way of this version.")
@click.option("--discard", is_flag=True, help="With --cancel: drop the bytes that came, too.")
@click.pass_obj
def fetch(
    session: MirrorSession, repository: str | None, revision: str | None, groups: tuple[str, ...],
    paths: tuple[str, ...], name: tuple[str, str] | None, accepted: tuple[str, ...],
    retry: tuple[str, str] | None, cancel: tuple[str, str] | None, *, dry_run: bool, wait: bool,
    discard: bool,
) -> None:  # fmt: skip
    """Bring REPOSITORY's files here, pinned to the commit of this moment.

    Small files that a loader needs come along. Ctrl-C ends the looking, not the fetch."""
    chosen = [value for value in (repository, retry, cancel) if value is not None]
    if len(chosen) != 1:
        raise click.UsageError("give one of REPOSITORY, --retry MODEL@VERSION and --cancel MODEL@VERSION")
    if discard and cancel is None:
        raise click.UsageError("--discard goes with --cancel; nothing else drops bytes")
    if repository is None and (revision or groups or name or accepted or dry_run):
        raise click.UsageError("--revision, --group, --as, --accept and --dry-run go with REPOSITORY")
    if cancel is not None:
        _cancel(session, cancel, paths, discard=discard)
        return
    if retry is not None:
        known = resolved(session, retry)
        again = pb.RetryFetchRequest(
            model=known.model, version=known.version, paths=paths, asked_by=asked_by()
        )
        version = session.ask(lambda stub: stub.RetryFetch(again, timeout=TIMEOUT_S)).version
    else:
        assert repository is not None
        wish = Wish(repository, revision, groups, paths, name, accepted)
        version = _asked(session, wish, dry_run=dry_run)
    if wait:
        follow(session, version)
    _told(session, version)


@dataclass(frozen=True)
class Wish:
    """What was typed of a repository."""

    repository: str
    revision: str | None
    groups: tuple[str, ...]
    paths: tuple[str, ...]
    name: tuple[str, str] | None
    accepted: tuple[str, ...]

    def request(self, fleet: Fleet, *, dry_run: bool) -> pb.FetchRepositoryRequest:
        model, version = self.name or (None, None)
        return pb.FetchRepositoryRequest(
            repository=self.repository, revision=self.revision, groups=self.groups, paths=self.paths,
            model=model, version=version, accepted=self.accepted, dry_run=dry_run, fleet=fleet.classes,
            asked_by=asked_by(),
        )  # fmt: skip

    def again(self, commit: str | None) -> list[str]:
        """To type; pinned to the commit that was looked at, whatever its branch does meanwhile."""
        at = commit or self.revision
        words = ["llmgwctl", "mirror", "fetch", self.repository, *(["--revision", at] if at else [])]
        words += [word for one in self.groups for word in ("--group", one)]
        words += [word for one in self.paths for word in ("--file", one)]
        words += ["--as", "@".join(self.name)] if self.name else []
        words += [word for one in self.accepted for word in ("--accept", one)]
        return words


def _asked(session: MirrorSession, wish: Wish, *, dry_run: bool) -> pb.WeightsVersion:
    """Says what comes and what will break. A dry run ends here, with 1 where something blocks."""
    fleet = fleet_of(session.controller)
    request = wish.request(fleet, dry_run=dry_run)
    answer = session.ask(lambda stub: stub.FetchRepository(request, timeout=REGISTRY_TIMEOUT_S))
    blocked = [one for one in answer.warnings if one.blocks and one.code not in wish.accepted]
    if session.output == "json":
        _print_json(fetch_json(answer, fleet, dry_run=dry_run))
    else:
        page = Page(ascii_only=session.ascii_only)
        render_asked(page, answer, fleet, wish, dry_run=dry_run)
        page.print()
    if dry_run:
        sys.exit(EXIT_TROUBLE if blocked else 0)
    return answer.version


def render_asked(
    page: Page, answer: pb.FetchRepositoryResponse, fleet: Fleet, wish: Wish, *, dry_run: bool
) -> None:
    one = answer.version
    if answer.HasField("bytes_to_fetch"):
        comes = f"{size(answer.bytes_to_fetch)} to fetch" if answer.bytes_to_fetch else "all of it is here"
    else:
        comes = "how much is to fetch nobody says"
    dry = " (dry run: nothing was fetched)" if dry_run else ""
    page.line(f"{label(one.model, one.version)}: {count(len(one.files), 'file')}, {comes}{dry}")
    warn(page, answer.warnings, accepted=wish.accepted)
    fleet.tell(page)
    if not dry_run:
        return
    for file in one.files:
        along = ", comes along" if file.companion else ""
        here = ", here" if file.state == pb.WEIGHTS_STATE_PRESENT else ""
        page.line(f"   {file.path}  {size(opt(file, 'size_bytes'))}{along}{here}")
    offer(page, wish.again(one.repository.commit or None))


def fetch_json(answer: pb.FetchRepositoryResponse, fleet: Fleet, *, dry_run: bool) -> Json:
    return {
        "schema": "llmgw.mirror-fetch/1",
        "dry_run": dry_run,
        "repository": repository_json(answer.version),
        "version": version_json(answer.version),
        "bytes_to_fetch": opt(answer, "bytes_to_fetch"),
        "fleet_unknown": fleet.unknown,
        "warnings": [warning_json(one) for one in answer.warnings],
    }


def _cancel(session: MirrorSession, name: tuple[str, str], paths: tuple[str, ...], *, discard: bool) -> None:
    known = resolved(session, name)
    request = pb.CancelFetchRequest(
        model=known.model, version=known.version, paths=paths, discard=discard, asked_by=asked_by()
    )
    answer = session.ask(lambda stub: stub.CancelFetch(request, timeout=CANCEL_TIMEOUT_S))
    if session.output == "json":
        said = {
            "schema": "llmgw.mirror-cancel/1",
            "version": version_json(answer.version),
            "freed_bytes": answer.freed_bytes,
        }
        _print_json(said)
        return
    if answer.version.state == pb.WEIGHTS_STATE_PRESENT:
        say(f"{label(known.model, known.version)}: all of it is here, nothing was on its way")
        return
    freed = f", {size(answer.freed_bytes)} freed" if discard else "; what came is kept"
    say(f"{label(known.model, known.version)}: stopped{freed}")
    say(f"to go on: llmgwctl mirror fetch --retry {typed(known.model, known.version)}")


def _told(session: MirrorSession, one: pb.WeightsVersion) -> None:
    """Without waiting for it."""
    if session.output == "json":
        return
    say(f"{label(one.model, one.version)} {summary(one)}")
    say("next: llmgwctl mirror downloads")


def follow(session: MirrorSession, one: pb.WeightsVersion) -> NoReturn:
    """Until every file is here, or one has failed or was stopped and nothing moves any more. Exit status 0
    with all of it here, else 1; Ctrl-C ends the looking alone."""
    view = _AsJson() if session.output == "json" else _AsLines(session)
    request = pb.WatchDownloadsRequest(model=one.model, version=one.version)

    def take(message: pb.WatchDownloadsResponse) -> None:
        mine = [v for v in message.versions if (v.model, v.version) == (one.model, one.version)]
        # What is whole is no download any more, and may be missing from the answer.
        if not mine or ended(mine[0]):
            raise _Ended
        view.take(mine[0], cap_line(message, now=time.time()))

    if not ended(one):
        view.take(one, None)
        try:
            session.follow(
                lambda stub: stub.WatchDownloads(request), take,
                again="the fetch goes on with the mirror; to look again: llmgwctl mirror downloads --watch",
            )  # fmt: skip
        except _Ended:
            pass
        except KeyboardInterrupt:
            _left(one)
    # Said from a look of its own: a stream that ended says nothing of how.
    view.end(resolved(session, (one.model, one.version)))
    sys.exit(view.exit_code)


class _Ended(Exception):
    """Nothing more will change by itself."""


def ended(one: pb.WeightsVersion) -> bool:
    """No file moves or waits for its turn."""
    waits = [
        file
        for file in one.files
        if file.state not in (pb.WEIGHTS_STATE_PRESENT, pb.WEIGHTS_STATE_FAILED) and not file.cancelled
    ]
    return not waits


def _left(one: pb.WeightsVersion) -> NoReturn:
    say(f"\nthe fetch of {label(one.model, one.version)} goes on", err=True)
    say("  to look: llmgwctl mirror downloads --watch", err=True)
    say(f"  to stop it: llmgwctl mirror fetch --cancel {typed(one.model, one.version)}", err=True)
    sys.exit(EXIT_INTERRUPTED)


class _AsLines:
    """Bars on a terminal, and a line for each file that arrived elsewhere."""

    def __init__(self, session: MirrorSession) -> None:
        self._ascii = session.ascii_only
        self._live = Live()
        self.exit_code = 0

    def take(self, one: pb.WeightsVersion, cap: str | None) -> None:
        self._show(one, cap, last=False)

    def end(self, one: pb.WeightsVersion) -> None:
        self._show(one, None, last=True)
        page = Page(ascii_only=self._ascii)
        if one.state == pb.WEIGHTS_STATE_PRESENT:
            page.line((f"next: llmgwctl mirror suggest {typed(one.model, one.version)}", "dim"))
        else:
            self.exit_code = EXIT_TROUBLE
            if not self._live.on_screen:
                version_lines(page, one)
        page.print()

    def _show(self, one: pb.WeightsVersion, cap: str | None, *, last: bool) -> None:
        page = Page(ascii_only=self._ascii)
        if cap is not None:
            page.line(f" * {cap}")
        version_lines(page, one, most=max(4, self._live.room - 6))
        # A file that arrived or failed is worth a line; bytes alone are one now and then.
        told = [file.state for file in one.files if self._live.on_screen or file.state in _WORTH_A_LINE]
        key = " ".join(map(str, told))
        line = f"{label(one.model, one.version)} {summary(one)}" + (f", {cap}" if cap is not None else "")
        self._live.show(page, line=line, key=key, last=last)


_WORTH_A_LINE = (pb.WEIGHTS_STATE_PRESENT, pb.WEIGHTS_STATE_FAILED)


class _AsJson:
    """One object a message, the last with `ended`."""

    def __init__(self) -> None:
        self.exit_code = 0

    def take(self, one: pb.WeightsVersion, cap: str | None) -> None:
        self._say(one, ended=False, cap=cap)

    def end(self, one: pb.WeightsVersion) -> None:
        self.exit_code = 0 if one.state == pb.WEIGHTS_STATE_PRESENT else EXIT_TROUBLE
        self._say(one, ended=True)

    def _say(self, one: pb.WeightsVersion, *, ended: bool, cap: str | None = None) -> None:
        said = {"schema": "llmgw.mirror-progress/1", "ended": ended, "cap": cap}
        _print_json({**said, "version": version_json(one)})


def _print_json(said: dict[str, Any]) -> None:
    click.echo(json.dumps(said, ensure_ascii=False))
    sys.stdout.flush()
