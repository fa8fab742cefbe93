"""What is on its way to the mirror, file by file; and the lines of a version that a fetch shows, too."""

import time
from dataclasses import dataclass
from typing import Any

import click
from rich.cells import cell_len

from llmgw.v1 import mirror_pb2 as pb
from llmgw_controller.cli import bars
from llmgw_controller.cli.as_json import Json, opt
from llmgw_controller.cli.exits import EXIT_TROUBLE
from llmgw_controller.cli.mirror.client import TIMEOUT_S, MirrorSession
from llmgw_controller.cli.mirror.names import label, typed
from llmgw_controller.cli.mirror.registry import registry_json, trouble_line
from llmgw_controller.cli.mirror.words import file_word, odd, version_json
from llmgw_controller.cli.page import Page, Piece, wrapped
from llmgw_controller.cli.text import count, duration, iso, moment, size, size_of

#: Of a file's line: name, state, bar, per cent, size and speed, in 100 columns.
NAME_MOST, BAR, FULL_WIDTH = 33, 20, 100
#: And on the narrowest page.
NAME_LEAST, BAR_LEAST = 20, 8
#: Files that are here are told one by one up to so many of a version; else their number and size.
PRESENT_SHOWN = 8


@dataclass(frozen=True)
class Downloads:
    """One look: what is on its way, how the registry fares, how full the disk is."""

    versions: tuple[pb.WeightsVersion, ...]
    registry: pb.GetRegistryResponse
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    #: Bytes a second for all fetches together; 0: nothing for now; None: no cap. And until when it is so.
    cap_bytes_s: int | None = None
    cap_until: float | None = None


@click.command("downloads")
@click.pass_obj
def downloads(session: MirrorSession) -> None:
    """Versions on their way or failed, file by file.

    With --watch again and again."""

    def render(page: Page, answer: Downloads) -> int:
        return render_downloads(page, answer, at=time.time())

    session.show(look, render, downloads_json)


async def look(stub: Any) -> Downloads:
    """Three questions, each about what the mirror knows already."""
    moving = await stub.ListDownloads(pb.ListDownloadsRequest(), timeout=TIMEOUT_S)
    # All files of them: what is missing says little without what is here.
    everything = await stub.ListVersions(pb.ListVersionsRequest(), timeout=TIMEOUT_S)
    whole = {(one.model, one.version): one for one in everything.versions}
    found = (whole.get((one.model, one.version)) for one in moving.versions)
    return Downloads(
        tuple(one for one in found if one is not None and one.state != pb.WEIGHTS_STATE_PRESENT),
        await stub.GetRegistry(pb.GetRegistryRequest(), timeout=TIMEOUT_S),
        opt(everything, "disk_total_bytes"),
        opt(everything, "disk_free_bytes"),
        opt(moving, "cap_bytes_s"),
        opt(moving, "cap_until_unix_s"),
    )


def cap_line(answer: pb.ListDownloadsResponse | pb.WatchDownloadsResponse, *, now: float) -> str | None:
    """What the mirror's settings leave to all fetches together; None: they bound nothing."""
    return _cap(opt(answer, "cap_bytes_s"), opt(answer, "cap_until_unix_s"), now=now)


def _cap(bytes_s: int | None, until: float | None, *, now: float) -> str | None:
    if bytes_s is None:
        return None
    end = f" until {moment(until, now=now)}" if until is not None else ""
    return f"at most {size(bytes_s)}/s{end}" if bytes_s else f"the schedule lets nothing through{end}"


def render_downloads(page: Page, answer: Downloads, *, at: float) -> int:
    """Exit status 1 where a version has failed, or the registry does."""
    versions = sorted(answer.versions, key=lambda one: (one.state, one.model, one.version))
    failed = sum(one.state == pb.WEIGHTS_STATE_FAILED for one in versions)
    told = [f"data 0 s old · {len(versions) - failed} fetching, {failed} failed"]
    if rate := sum(filter(None, (rate_of(one) for one in versions))):
        told.append(f"{size(rate)}/s")
    if answer.disk_total_bytes is not None and answer.disk_free_bytes is not None:
        used = answer.disk_total_bytes - answer.disk_free_bytes
        told.append(f"disk {size_of(used, answer.disk_total_bytes)}")
    if (cap := _cap(answer.cap_bytes_s, answer.cap_until, now=at)) is not None:
        told.append(cap)
    page.line(" · ".join(told))
    trouble = trouble_line(page, answer.registry)
    for one in versions:
        page.blank()
        version_lines(page, one)
    if not versions:
        page.line("nothing is on its way")
        page.line(("next: llmgwctl mirror versions", "dim"))
    return EXIT_TROUBLE if failed or trouble else 0


def downloads_json(answer: Downloads) -> Json:
    registry = registry_json(answer.registry)
    failed = any(one.state == pb.WEIGHTS_STATE_FAILED for one in answer.versions)
    return {
        "schema": "llmgw.mirror-downloads/1",
        "versions": [version_json(one) for one in answer.versions],
        "registry": {name: registry[name] for name in ("trouble", "trouble_since", "tried_again")},
        "disk_total_bytes": answer.disk_total_bytes,
        "disk_free_bytes": answer.disk_free_bytes,
        "cap_bytes_per_second": answer.cap_bytes_s,
        "cap_until": iso(answer.cap_until),
        "exit_code": EXIT_TROUBLE if failed or registry["trouble"] else 0,
    }


def rate_of(one: pb.WeightsVersion) -> float | None:
    """Of all its files together; None where none of them has one."""
    if one.HasField("rate_bytes_s"):
        return one.rate_bytes_s
    rates = [file.rate_bytes_s for file in one.files if file.HasField("rate_bytes_s")]
    return sum(rates) if rates else None


def summary(one: pb.WeightsVersion) -> str:
    """`fetching: 3 of 5 files present, 12.1 of 14.8 GB, about 24 s`: the worst of its files, in words."""
    files = list(one.files)
    present = sum(file.state == pb.WEIGHTS_STATE_PRESENT for file in files)
    if one.state == pb.WEIGHTS_STATE_PRESENT:
        return f"present: {count(len(files), 'file')}, {size(opt(one, 'total_bytes'))}"
    failed = sum(file.state == pb.WEIGHTS_STATE_FAILED for file in files)
    if failed:
        return f"FAILED: {failed} of {count(len(files), 'file')}, so the version cannot be used"
    moving = any(file.state in (pb.WEIGHTS_STATE_FETCHING, pb.WEIGHTS_STATE_VERIFYING) for file in files)
    stopped = sum(file.cancelled for file in files)
    word = "fetching" if moving else "stopped" if stopped else "waiting"
    told = f"{word}: {present} of {count(len(files), 'file')} present"
    if one.HasField("total_bytes"):
        told += f", {size_of(one.received_bytes, one.total_bytes)}"
    else:
        told += f", {size(one.received_bytes)}"
    return told + (f", about {duration(one.eta_s)}" if one.HasField("eta_s") else "")


def version_lines(page: Page, one: pb.WeightsVersion, *, most: int | None = None) -> None:
    """Its line, what is not here file by file (at most `most` of them), and what is."""
    wrapped(page, [(f"{label(one.model, one.version)}  ", "")], summary(one))
    odd(page, one)
    failed = [file for file in one.files if file.state == pb.WEIGHTS_STATE_FAILED]
    present = [file for file in one.files if file.state == pb.WEIGHTS_STATE_PRESENT]
    summed = bool(failed) or len(one.files) > PRESENT_SHOWN
    shown = [file for file in one.files if not summed or file.state != pb.WEIGHTS_STATE_PRESENT]
    # Who is at work first where not all can be shown; else in the order of their names.
    if most is not None and len(shown) > most:
        shown = sorted(shown, key=lambda file: _URGENCY.get(file.state, 9))
    cut, shown = shown[most:] if most is not None else [], shown[:most]
    for file in shown:
        _file_line(page, file)
        if file.HasField("error"):
            wrapped(page, [("     ", "")], file.error)
    if cut:
        page.line(f"   … {len(cut)} more that wait")
    if failed:
        page.line((f"     llmgwctl mirror fetch --retry {typed(one.model, one.version)}", "dim"))
    elif any(file.cancelled for file in one.files):
        page.line((f"     to go on: llmgwctl mirror fetch --retry {typed(one.model, one.version)}", "dim"))
    if summed and present:
        held = sum(file.size_bytes for file in present)
        name = f"{len(present)} other files" if len(present) > 1 else "1 other file"
        _line(page, ("   ", ""), name, "present", 1.0, size(held))


_URGENCY = {
    pb.WEIGHTS_STATE_FAILED: 0,
    pb.WEIGHTS_STATE_FETCHING: 1,
    pb.WEIGHTS_STATE_VERIFYING: 2,
}


def _file_line(page: Page, file: pb.WeightsFile) -> None:
    whole = opt(file, "size_bytes")
    told = size(whole)
    if file.HasField("rate_bytes_s"):
        told += f", {size(file.rate_bytes_s)}/s"
    if file.HasField("eta_s"):
        told += f", ~{duration(file.eta_s)}"
    bad = file.state == pb.WEIGHTS_STATE_FAILED
    # A size nobody told gives no share: an empty bar with "-", never 0 %.
    share = None if whole is None else 1.0 if whole == 0 else min(1.0, file.received_bytes / whole)
    _line(page, ("!! ", "bold red") if bad else ("   ", ""), file.path, file_word(file), share, told)


def _widths(page: Page) -> tuple[int, int]:
    """Of a name and a bar: what a page of 100 columns has for both, less where it has less."""
    lacking = max(0, FULL_WIDTH - page.width)
    bar = max(BAR_LEAST, BAR - lacking // 2)
    return max(NAME_LEAST, NAME_MOST - (lacking - (BAR - bar))), bar


def _line(page: Page, mark: Piece, name: str, word: str, share: float | None, told: str) -> None:
    most, bar_width = _widths(page)
    # The end of a shard's name is what differs; its beginning is the model's.
    name = name if cell_len(name) <= most else f"…{name[-(most - 1) :]}"
    bar = bars.progress(share, width=bar_width, ascii_only=page.ascii_only)
    percent = "    -" if share is None else f"{_percent(share):3d} %"
    pad = " " * (most - cell_len(name))
    page.line(mark, f"{name}{pad}  {word:<9} ", (bar, "cyan"), f" {percent}  {told}")


def _percent(share: float) -> int:
    """Rounded down: 100 % is whole."""
    return int(share * 100)
