"""What the registry has: `search` and `files`."""

import shlex
from collections.abc import Sequence

import click

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.exits import EXIT_TROUBLE
from llmgw_controller.cli.mirror.client import REGISTRY_TIMEOUT_S, MirrorSession
from llmgw_controller.cli.mirror.fleet import Fleet, fleet_of
from llmgw_controller.cli.mirror.names import short
from llmgw_controller.cli.mirror.words import checksum, offer, repository_json, warn, warning_json
from llmgw_controller.cli.page import Column, Page, Piece, Row, Span, table, wrapped
from llmgw_controller.cli.text import count, iso, joined, size
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.names import did_you_mean
from llmgw_kit.text import in_one_line

SORTS = ("downloads", "likes", "modified", "created", "trending")
#: Files beneath the groups, unless all are asked for.
FILES_SHOWN = 40


@click.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--author", help="Only this organisation's or person's.")
@click.option(
    "--filter", "filters", multiple=True, help="A tag that must be there, such as gguf; repeatable."
)
@click.option("--sort", type=click.Choice(SORTS), default="downloads", show_default=True)
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.pass_obj
def search(
    session: MirrorSession, words: tuple[str, ...], author: str | None, filters: tuple[str, ...], sort: str,
    limit: int,
) -> None:  # fmt: skip
    """Repositories of the registry, by words."""
    wanted = " ".join(words)
    request = pb.SearchRequest(words=wanted, author=author, filters=filters, sort=sort, limit=limit)

    def render(page: Page, answer: pb.SearchResponse) -> int:
        return render_search(page, answer, words=wanted)

    session.show(lambda stub: stub.Search(request, timeout=REGISTRY_TIMEOUT_S), render, search_json)


def render_search(page: Page, answer: pb.SearchResponse, *, words: str) -> int:
    """Odd rows stand where they came, each with why: one of them hides no other (M20)."""
    more = ", more with --limit or further words" if answer.more else ""
    found = count(len(answer.repositories), "repository", "repositories")
    page.line(f"data 0 s old · {found} for {words!r}{more}")
    if not answer.repositories:
        page.line("nothing has these words; fewer of them may find more")
        return 0
    columns = [
        Column(""), Column("REPOSITORY", most=44), Column("DOWNLOADS", right=True),
        Column("LIKES", right=True), Column("CHANGED"), Column("GATED", most=15), Column("HERE", most=16),
    ]  # fmt: skip
    table(page, columns, [_found(one) for one in answer.repositories])
    whole = next((one.id for one in answer.repositories if not one.HasField("odd")), None)
    if whole is not None:
        page.line((f"next: llmgwctl mirror files {shlex.quote(whole)}", "dim"))
    return 0


def _found(one: pb.FoundRepository) -> Row:
    if one.HasField("odd"):
        return Span((" *", one.id or "(without a name)"), (f"cannot be read: {one.odd}", ""))
    return (
        "", one.id, _thousands(opt(one, "downloads")), _thousands(opt(one, "likes")),
        _day(opt(one, "modified_unix_s")), _access(one),
        joined([short(version) for version in one.versions_here], most=1),
    )  # fmt: skip


def _access(one: pb.FoundRepository) -> str:
    """The registry's own word; `private` where that is why not everybody sees it."""
    words = [one.gated] if one.HasField("gated") else []
    return ", ".join([*words, *(["private"] if one.private else [])]) or "no"


def _thousands(number: int | None) -> str:
    return "-" if number is None else f"{number:,}".replace(",", " ")


def _day(unix_s: float | None) -> str:
    return "-" if unix_s is None else (iso(unix_s) or "-")[:10]


def search_json(answer: pb.SearchResponse) -> Json:
    return {
        "schema": "llmgw.mirror-search/1",
        "more": answer.more,
        "repositories": [
            {
                "id": one.id,
                "odd": opt(one, "odd"),
                "gated": opt(one, "gated"),
                "private": one.private,
                "downloads": opt(one, "downloads"),
                "likes": opt(one, "likes"),
                "modified": iso(opt(one, "modified_unix_s")),
                "pipeline_tag": opt(one, "pipeline_tag"),
                "library": opt(one, "library"),
                "tags": list(one.tags),
                "versions_here": list(one.versions_here),
            }
            for one in answer.repositories
        ],
    }


@click.command("files")
@click.argument("repository")
@click.option("--revision", help="A branch, tag or commit; main unless given.")
@click.option("--group", "groups", multiple=True, help="Only this group's files; repeatable.")
@click.option("--all", "every", is_flag=True, help="Every file, not only the first page.")
@click.pass_obj
def files(
    session: MirrorSession, repository: str, revision: str | None, groups: tuple[str, ...], *, every: bool
) -> None:
    """REPOSITORY's weight files at one commit, and what will break.

    Grouped by format and quantisation: a group is one choice."""
    fleet = fleet_of(session.controller)
    request = pb.ListFilesRequest(repository=repository, revision=revision, fleet=fleet.classes)

    def render(page: Page, answer: pb.ListFilesResponse) -> int:
        return render_files(page, answer, fleet, groups=groups, every=every)

    session.show(
        lambda stub: stub.ListFiles(request, timeout=REGISTRY_TIMEOUT_S),
        render,
        lambda answer: files_json(answer, fleet),
    )


def render_files(
    page: Page, answer: pb.ListFilesResponse, fleet: Fleet, *, groups: Sequence[str] = (), every: bool = False
) -> int:
    """Exit status 1 where what concerns the whole repository stops a fetch."""
    one = answer.repository
    at = f"{one.id} @ {short(one.commit)}" + (f" ({one.revision})" if one.HasField("revision") else "")
    told = [f"data 0 s old · {at}", count(len(answer.groups), "group")]
    if answer.HasField("parameters"):
        told.append(f"{answer.parameters / 1e9:.3g} B parameters")
    if answer.HasField("license"):
        told.append(f"license {answer.license}")
    if answer.HasField("disk_free_bytes"):
        told.append(f"disk free {size(answer.disk_free_bytes)}")
    wrapped(page, [], in_one_line(" · ".join(told)))
    # The word is the registry's own; without a grant a fetch of it ends with 403.
    if answer.HasField("gated"):
        wrapped(page, [(" * ", "")], f"gated ({answer.gated}): the mirror's token must have been granted it")
    warn(page, answer.warnings)
    fleet.tell(page)
    for odd in answer.odd_files:
        wrapped(
            page, [(" * ", ""), (f"{odd.path or '(without a name)'}: ", "")], f"cannot be read: {odd.why}"
        )
    if not answer.groups:
        page.line("no weight files are in it")
        return _exit_of(answer)
    known = [group.name for group in answer.groups]
    for name in groups:
        if name not in known:
            raise InvalidRequest(
                f"{one.id} has no group {name!r}{did_you_mean(name, known)}",
                next_steps=[f"its groups: {', '.join(known)}"],
            )
    _groups(page, answer)
    _files(page, answer, groups, every=every)
    best = next((group for group in answer.groups if group.preselected), answer.groups[0])
    chosen = ["--group", best.name] if len(answer.groups) > 1 else []
    # At the commit that was listed: between two commands a branch may move.
    pinned = ["--revision", one.commit]
    taken = [part for code in _stops(answer) for part in ("--accept", code)]
    offer(page, ["llmgwctl", "mirror", "fetch", one.id, *pinned, *chosen, *taken, "--dry-run"])
    return _exit_of(answer)


def _stops(answer: pb.ListFilesResponse) -> list[str]:
    """Codes of what stops a fetch of the usual choice."""
    best = [warning for group in answer.groups if group.preselected for warning in group.warnings]
    return sorted({one.code for one in (*answer.warnings, *best) if one.blocks})


def _exit_of(answer: pb.ListFilesResponse) -> int:
    return EXIT_TROUBLE if _stops(answer) else 0


def _groups(page: Page, answer: pb.ListFilesResponse) -> None:
    columns = [
        Column(""), Column("GROUP", most=28), Column("FORMAT", most=12), Column("BITS", most=10),
        Column("FILES", right=True), Column("SIZE", right=True), Column("", most=5), Column("HERE", most=14),
    ]  # fmt: skip
    table(
        page,
        columns,
        [
            (
                _mark(group), group.name, group.format, opt(group, "quantisation") or "-",
                str(len(group.files)), size(opt(group, "total_bytes")), "best" if group.preselected else "",
                short(group.version_here) if group.HasField("version_here") else "no",
            )
            for group in answer.groups
        ],
    )  # fmt: skip
    for group in answer.groups:
        if group.warnings:
            page.line(f"{group.name}:")
            warn(page, group.warnings)


def _mark(group: pb.FileGroup) -> Piece:
    if any(one.blocks for one in group.warnings):
        return ("!!", "bold red")
    return (" *", "") if group.warnings else ("", "")


def _files(page: Page, answer: pb.ListFilesResponse, groups: Sequence[str], *, every: bool) -> None:
    rows = [
        (file.path, size(opt(file, "size_bytes")), group.name, checksum(file))
        for group in answer.groups
        if not groups or group.name in groups
        for file in group.files
    ]
    rows += [
        (file.path, size(opt(file, "size_bytes")), "with any", checksum(file)) for file in answer.companions
    ]
    shown = rows if every else rows[:FILES_SHOWN]
    page.blank()
    columns = [
        Column("FILE", most=44), Column("SIZE", right=True), Column("GROUP", most=20), Column("CHECKSUM"),
    ]  # fmt: skip
    table(page, columns, shown)
    if len(rows) > len(shown):
        whole = f"llmgwctl mirror files {shlex.quote(answer.repository.id)} --all"
        page.line(f"… {len(rows) - len(shown)} more.  {whole}")


def _file_json(file: pb.ListedFile) -> Json:
    return {
        "path": file.path,
        "size_bytes": opt(file, "size_bytes"),
        "sha256": opt(file, "sha256"),
        "git_id": opt(file, "git_id"),
    }


def files_json(answer: pb.ListFilesResponse, fleet: Fleet) -> Json:
    return {
        "schema": "llmgw.mirror-files/1",
        "repository": repository_json(answer),
        "gated": opt(answer, "gated"),
        "license": opt(answer, "license"),
        "parameters": opt(answer, "parameters"),
        "disk_free_bytes": opt(answer, "disk_free_bytes"),
        "fleet_unknown": fleet.unknown,
        "warnings": [warning_json(one) for one in answer.warnings],
        "odd_files": [{"path": one.path, "why": one.why} for one in answer.odd_files],
        "groups": [
            {
                "name": group.name,
                "format": group.format,
                "quantisation": opt(group, "quantisation"),
                "total_bytes": opt(group, "total_bytes"),
                "preselected": group.preselected,
                "version_here": opt(group, "version_here"),
                "warnings": [warning_json(one) for one in group.warnings],
                "files": [_file_json(file) for file in group.files],
            }
            for group in answer.groups
        ],
        "companions": [_file_json(file) for file in answer.companions],
        "exit_code": _exit_of(answer),
    }
