"""`llmgwctl mirror fetch`: what is asked, what is shown while it comes, and how it ends."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from typing import Any

import pytest

from llmgw.v1 import mirror_pb2 as pb
from llmgw_kit.errors import Conflict, NotConfigured, Unavailable
from tests.unit.cli import mirrored
from tests.unit.cli.mirrored import COMMIT, GB

REPOSITORY = pb.Repository(id="Qwen/Qwen3-14B", commit=COMMIT, revision="main")


def at(*states: tuple[str, str, int], **more: Any) -> pb.WeightsVersion:
    """A version of files of 4 GB, each (path, state, received)."""
    files = [mirrored.file(path, state, received_bytes=here) for path, state, here in states]
    return mirrored.version("qwen3-14b", *files, name=COMMIT, **more)


ABSENT = at(("a", "absent", 0), ("b", "absent", 0))
HALF = at(("a", "present", 4 * GB), ("b", "fetching", GB), eta_s=24)
WHOLE = at(("a", "present", 4 * GB), ("b", "present", 4 * GB))
FAILED = at(("a", "present", 4 * GB), ("b", "failed", 0))


def watched(*versions: pb.WeightsVersion) -> list[pb.WatchDownloadsResponse]:
    return [pb.WatchDownloadsResponse(versions=[one]) for one in versions]


def answers(stream: list[Any], end: pb.WeightsVersion, **more: Any) -> dict[str, Any]:
    asked = pb.FetchRepositoryResponse(version=ABSENT, bytes_to_fetch=8 * GB)
    return {
        "FetchRepository": asked, "WatchDownloads": stream,
        "ResolveVersion": pb.ResolveVersionResponse(version=end), **more,
    }  # fmt: skip


def test_a_fetch_is_waited_for_and_says_what_comes_next(run, mirror):
    fake = mirror(answers(watched(ABSENT, HALF, WHOLE), WHOLE))
    code, out, _ = run("mirror", "fetch", "Qwen/Qwen3-14B", "--group", "safetensors", "--as", "qwen3-14b@v1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "qwen3-14b @ 40c0698: 2 files, 8 GB to fetch"
    assert "qwen3-14b @ 40c0698 fetching: 1 of 2 files present, 5 of 8 GB, about 24 s" in lines
    assert lines[-2:] == [
        "qwen3-14b @ 40c0698 present: 2 files, 8 GB", "next: llmgwctl mirror suggest qwen3-14b@40c0698",
    ]  # fmt: skip
    [request] = fake.requests("FetchRepository")
    assert (request.repository, list(request.groups), request.model, request.version) == (
        "Qwen/Qwen3-14B", ["safetensors"], "qwen3-14b", "v1",
    )  # fmt: skip
    assert "@" in request.asked_by
    [watch] = fake.requests("WatchDownloads")
    assert (watch.model, watch.version) == ("qwen3-14b", COMMIT)


def test_without_a_controller_it_is_said_that_fits_were_not_checked(run, mirror):
    fake = mirror(answers(watched(WHOLE), WHOLE))
    _, out, _ = run("mirror", "fetch", "x")
    assert "whether it fits any GPU of this fleet was not checked: no controller answered" in out
    assert not fake.requests("FetchRepository")[0].fleet


def test_what_left_the_downloads_is_looked_at_once_more(run, mirror):
    """What is whole is no download any more."""
    mirror(answers([*watched(HALF), pb.WatchDownloadsResponse()], WHOLE))
    code, out, _ = run("mirror", "fetch", "x")
    assert code == 0
    assert "present: 2 files, 8 GB" in out


def test_a_fetch_that_a_schedule_holds_says_so(run, mirror):
    held = pb.WatchDownloadsResponse(versions=[ABSENT], cap_bytes_s=0, cap_until_unix_s=mirrored.NOW)
    mirror(answers([pb.WatchDownloadsResponse(versions=[HALF]), held, *watched(WHOLE)], WHOLE))
    _, out, _ = run("mirror", "fetch", "x")
    assert "the schedule lets nothing through until" in out


def test_one_failed_file_is_1_and_names_what_to_type(run, mirror):
    failed = at(("a", "present", 4 * GB), ("b", "failed", 0))
    failed.files[1].error = "checksum differs: got 91f0…, published 44ab…; removed"
    mirror(answers(watched(HALF, failed), failed))
    code, out, _ = run("mirror", "fetch", "x")
    assert code == 1
    assert "FAILED: 1 of 2 files, so the version cannot be used" in out
    assert "checksum differs" in out
    assert "llmgwctl mirror fetch --retry qwen3-14b@40c0698" in out


def test_what_is_here_already_is_not_watched(run, mirror):
    fake = mirror({
        "FetchRepository": pb.FetchRepositoryResponse(version=WHOLE, bytes_to_fetch=0),
        "ResolveVersion": pb.ResolveVersionResponse(version=WHOLE),
    })  # fmt: skip
    code, out, _ = run("mirror", "fetch", "x")
    assert code == 0
    assert "all of it is here" in out
    assert not fake.requests("WatchDownloads")


def test_no_wait_asks_and_goes(run, mirror):
    fake = mirror(answers([], WHOLE))
    code, out, _ = run("mirror", "fetch", "x", "--no-wait")
    assert code == 0
    assert out.endswith("next: llmgwctl mirror downloads\n")
    assert not fake.requests("WatchDownloads")


def test_a_dry_run_fetches_nothing_and_is_1_where_something_blocks(run, mirror):
    warning = pb.Warning(code="pickle_only", text="pickles only", next_steps=["accept it"], blocks=True)
    told = pb.FetchRepositoryResponse(version=ABSENT, bytes_to_fetch=8 * GB, warnings=[warning])
    told.version.repository.CopyFrom(REPOSITORY)
    fake = mirror({"FetchRepository": told})
    code, out, _ = run("mirror", "fetch", "Qwen/Qwen3-14B", "--dry-run")
    assert code == 1
    assert "!! pickle_only: pickles only" in out
    assert f"--revision {COMMIT}" in out
    assert fake.requests("FetchRepository")[0].dry_run
    code, out, _ = run("mirror", "fetch", "Qwen/Qwen3-14B", "--dry-run", "--accept", "pickle_only")
    assert code == 0
    assert list(fake.requests("FetchRepository")[1].accepted) == ["pickle_only"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Conflict("pickle_only blocks it", code="blocked", next_steps=["--accept pickle_only"]), 1),
        (NotConfigured("no registry is configured", code="no_registry", next_steps=["set registry_url"]), 1),
        (Unavailable("HTTP 503 after 10.0 s", code="registry_away", retry_after_s=30), 2),
    ],
)
def test_a_refusal_is_told_whole(run, mirror, error, status):
    mirror({"FetchRepository": error, "Search": error})
    for words in (["fetch", "x"], ["search", "x"]):
        code, _, err = run("mirror", *words)
        assert code == status
        assert err.startswith(f"error: {error.text}\n")
        assert all(step in err for step in error.next_steps)


def test_retry_and_cancel_take_the_beginning_of_a_version(run, mirror):
    fake = mirror({
        "ResolveVersion": pb.ResolveVersionResponse(version=FAILED),
        "RetryFetch": pb.RetryFetchResponse(version=HALF),
        "CancelFetch": pb.CancelFetchResponse(version=HALF, freed_bytes=GB),
    })  # fmt: skip
    code, out, _ = run("mirror", "fetch", "--retry", "qwen3-14b@40c0", "--file", "b", "--no-wait")
    assert code == 0
    [again] = fake.requests("RetryFetch")
    assert (again.version, list(again.paths)) == (COMMIT, ["b"])
    code, out, _ = run("mirror", "fetch", "--cancel", "qwen3-14b@40c0", "--discard")
    assert code == 0
    assert "stopped, 1 GB freed" in out
    assert "llmgwctl mirror fetch --retry qwen3-14b@40c0698" in out
    [stop] = fake.requests("CancelFetch")
    assert (stop.version, stop.discard) == (COMMIT, True)


def test_nothing_is_stopped_of_what_is_here(run, mirror):
    mirror({
        "ResolveVersion": pb.ResolveVersionResponse(version=WHOLE),
        "CancelFetch": pb.CancelFetchResponse(version=WHOLE),
    })  # fmt: skip
    code, out, _ = run("mirror", "fetch", "--cancel", "qwen3-14b@40c0")
    assert code == 0
    assert out == "qwen3-14b @ 40c0698: all of it is here, nothing was on its way\n"


def test_json_is_one_object_a_line_and_the_last_has_ended(run, mirror):
    mirror(answers(watched(HALF), WHOLE))
    code, out, _ = run("mirror", "fetch", "x", "--output", "json")
    said = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [one["schema"] for one in said] == ["llmgw.mirror-fetch/1"] + ["llmgw.mirror-progress/1"] * 3
    assert [one.get("ended") for one in said] == [None, False, False, True]
    assert said[-1]["version"]["state"] == "present"


def test_a_mirror_that_goes_away_in_the_middle_is_2_and_the_fetch_goes_on(run, mirror):
    mirror(answers([*watched(HALF), Unavailable("stopping", code="unreachable")], WHOLE))
    code, _, err = run("mirror", "fetch", "x")
    assert code == 2
    assert "the mirror went away in the middle" in err
    assert "llmgwctl mirror downloads --watch" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fetch"], "give one of REPOSITORY, --retry MODEL@VERSION and --cancel MODEL@VERSION"),
        (["fetch", "x", "--cancel", "m@v1"], "give one of REPOSITORY"),
        (["fetch", "x", "--discard"], "--discard goes with --cancel"),
        (["fetch", "--retry", "m@v1", "--group", "g"], "go with REPOSITORY"),
        (["fetch", "x", "--as", "noversion"], "'noversion' is not MODEL@VERSION"),
        (["fetch", "--retry", "m@"], "'m@' is not MODEL@VERSION"),
        (["fetch", "--retry", "m@" + "v" * 600], "no name is that long"),
        (["fetch", "x", "--watch"], "--watch goes with the views"),
        (["search", "x", "--limit", "0"], "--limit"),
        (["search"], "Missing argument 'WORDS...'"),
        (["--mirror", "10.0.0.1", "versions"], "--mirror 10.0.0.1 has no port"),
        (["versions", "--mirror", "h:70707"], "--mirror 'h:70707' has port '70707'"),
        (["export", "m@v1"], "Missing option '--name'"),
        (["remove", "m"], "is not MODEL@VERSION"),
        (["histroy"], "no such command 'histroy' (did you mean 'history'?)"),
    ],
)
def test_bad_input_is_64_and_reaches_no_mirror(run, mirror, words, said):
    fake = mirror({})
    code, _, err = run("mirror", *words)
    assert code == 64
    assert said in err
    assert not fake.asked


def test_no_mirror_is_2_and_names_the_address(run, monkeypatch, unused_tcp_port):
    monkeypatch.setenv("LLMGW_MIRROR", f"127.0.0.1:{unused_tcp_port}")
    code, _, err = run("mirror", "versions")
    assert code == 2
    assert f"127.0.0.1:{unused_tcp_port} refused" in err
    assert "--mirror HOST:PORT" in err


def test_the_first_mirror_that_can_be_reached_is_asked(run, mirror, monkeypatch, unused_tcp_port):
    fake = mirror({"ListVersions": mirrored.versions()})
    address = os.environ["LLMGW_MIRROR"]
    monkeypatch.delenv("LLMGW_MIRROR")
    code, _, _ = run("mirror", "versions", "--mirror", f"127.0.0.1:{unused_tcp_port},{address}")
    assert code == 1, "one of them has failed"
    assert len(fake.asked) == 1


def on_a_terminal(*words: str, until: bytes, then: int | None = None) -> tuple[int, str]:
    """Exit status and everything drawn; `then` is sent once `until` was seen."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "LLMGW_CONTROLLER": "127.0.0.1:1", "COLUMNS": "100", "LINES": "40"}
    child = subprocess.Popen(
        [sys.executable, "-m", "llmgw_controller.cli.main", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    drawn, sent = b"", then is None
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break  # What a terminal says when its last program has ended.
            drawn += piece
            if not sent and until in drawn:
                child.send_signal(then or 0)
                sent = True
        return child.wait(30), drawn.decode()
    finally:
        os.close(ours)
        if child.poll() is None:
            child.kill()


def test_on_a_terminal_bars_are_drawn_over_in_place(mirror):
    mirror(answers(watched(HALF, WHOLE), WHOLE))
    code, drawn = on_a_terminal("mirror", "fetch", "x", until=b"")
    assert code == 0
    assert "█" in drawn
    assert "\x1b[3F" in drawn, "the cursor goes up over what stood there"
    assert "llmgwctl mirror suggest qwen3-14b@40c0698" in drawn


def test_ctrl_c_leaves_the_fetch_and_says_how_to_look_and_to_stop(mirror):
    fake = mirror(answers([*watched(HALF), None], WHOLE))
    code, drawn = on_a_terminal("mirror", "fetch", "x", until=b"fetching", then=signal.SIGINT)
    assert code == 130
    assert "the fetch of qwen3-14b @ 40c0698 goes on" in drawn
    assert "llmgwctl mirror fetch --cancel qwen3-14b@40c0698" in drawn
    assert not fake.requests("CancelFetch")
