"""What the agent keeps on disk: journal entries, logs of engines, and that a failed write is told."""

import asyncio
import hashlib
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw_agent.adapters import procfs, weights_store
from llmgw_agent.adapters.fetching import FetchLimits, Weights
from llmgw_agent.adapters.files import read_json as read_manifest
from llmgw_agent.adapters.files import write_json
from llmgw_agent.adapters.journal import Journal
from llmgw_agent.adapters.processes import last_lines, prune, rotate
from llmgw_agent.adapters.weights_store import PartialFile, WeightsStore, hash_file
from llmgw_agent.core.shard import Exit, ProcessIdentity, Shard, ShardState
from llmgw_agent.core.spec import ShardSpec, WeightsRef
from llmgw_agent.core.weights import Listing, WeightsFile, WeightsKey
from llmgw_kit.errors import Unavailable
from llmgw_kit.ids import DeviceId, ReplicaId, ShardId
from llmgw_kit.testing.clock import FakeClock
from tests.integration.agent.agent_bench import read_json

SPEC = ShardSpec(
    ShardId("org/m.1-0"),
    ReplicaId("org/m/1"),
    3,
    "h",
    "m",
    "command",
    credential="sekret",
    ports={"http": 20001},
)
SHARD = Shard(
    SPEC, state=ShardState.SERVING, token="t", process=ProcessIdentity(7, 99, "boot"), probed=True,
    fetch_s=9.5, load_s=1.5, warm_up_s=0.5, engine_version="1.2", memory_used=((DeviceId("gpu-0"), 7),),
    launched_unix_s=5.0, log_path="/x.log", story=("a",),
)  # fmt: skip


def test_the_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    other = replace(SPEC, shard_id=ShardId("b"), weights=WeightsRef("m", "v"))
    how = Exit("crashed", "bye", code=3)
    gone = Shard(other, state=ShardState.EXITED, token="t", exit=how, stop_reason="x")
    journal.write(SHARD)
    journal.write(gone)
    assert journal.read() == {SHARD.spec.shard_id: SHARD, gone.spec.shard_id: gone}
    journal.forget(SHARD.spec.shard_id)
    journal.forget(SHARD.spec.shard_id)
    assert list(journal.read()) == ["b"]


def test_an_entry_of_an_earlier_release_is_read_without_what_it_does_not_know(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(SHARD)
    (path,) = tmp_path.glob("*.json")
    plain = read_json(path)
    for name in ("fetch_s", "warm_up_s", "engine_version", "memory_used"):
        del plain[name]
    write_json(path, plain)
    older = replace(SHARD, fetch_s=None, warm_up_s=None, engine_version=None, memory_used=())
    assert journal.read() == {SHARD.spec.shard_id: older}


def test_a_journal_entry_is_for_the_agents_eyes_only(tmp_path: Path) -> None:
    Journal(tmp_path).write(SHARD)
    (path,) = tmp_path.glob("*.json")
    assert path.stat().st_mode & 0o077 == 0, "a spec holds a credential"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', '{"format": 1}', "null"])
def test_an_entry_that_cannot_be_read_is_set_aside_and_the_others_stand(tmp_path: Path, content: str) -> None:
    journal = Journal(tmp_path)
    journal.write(SHARD)
    (tmp_path / "bad.json").write_text(content)
    assert list(journal.read()) == [SHARD.spec.shard_id]
    assert (tmp_path / "bad.unreadable").exists()


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"new": 1})
    assert read_json(path) == {"old": 1}


def test_a_long_log_is_cut_in_place_and_the_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "s1.log"
    with log.open("ab", buffering=0) as engine:
        engine.write(b"old\n" * 1000)
        rotate(log, most_bytes=1000)
        assert log.stat().st_size == 0
        engine.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "s1.log.1").read_bytes() == b"old\n" * 250
    rotate(log, most_bytes=1000)
    assert log.read_bytes() == b"new\n"
    rotate(tmp_path / "none.log", most_bytes=1)


def test_the_last_lines_are_few_and_readable(tmp_path: Path) -> None:
    log = tmp_path / "s1.log"
    log.write_bytes(b"x" * 10_000 + b"\n" + b"".join(b"line %d\n" % i for i in range(50)) + b"\xff end")
    told = last_lines(log)
    assert told.splitlines()[-1].endswith(" end")
    assert len(told.splitlines()) == 20
    log.write_bytes(b"\x1b[1;31mERROR\x1b[0m \xff at \0\n 10%\r 20%\n")
    assert last_lines(log) == "ERROR \ufffd at \ufffd\n 10%\n 20%", "readable also for a store and a terminal"
    assert last_lines(tmp_path / "none.log") == ""


def test_only_logs_of_forgotten_engines_are_deleted_the_oldest_first(tmp_path: Path) -> None:
    for i in range(6):
        path = tmp_path / f"s{i}.log"
        path.write_text("x")
        os.utime(path, (i, i))
    (tmp_path / "s0.log.1").write_text("x")
    prune(tmp_path, keep={"s0"}, most=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s0.log", "s0.log.1", "s4.log", "s5.log"]


def test_reading_weights_is_given_up_when_told(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Unavailable, match="given up"):
        hash_file(path, stop)
    with pytest.raises(Unavailable, match="given up"):
        PartialFile(path, WeightsFile("f", 200, "0" * 64), stop)


def published(store: WeightsStore, version: str, data: bytes) -> str:
    """A version of one file; its sha256."""
    file = WeightsFile("w.bin", len(data), hashlib.sha256(data).hexdigest())
    listing = Listing(WeightsKey("org/m", version), (file,))
    (store.begin(listing) / file.path).write_bytes(data)
    store.publish(listing)
    return file.sha256


def test_content_is_found_without_reading_every_manifest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads in ranges asks for it hundreds of times."""
    store = WeightsStore(tmp_path)
    read: list[Path] = []

    def reading(path: Path) -> object:
        read.append(path)
        return read_manifest(path)

    monkeypatch.setattr(weights_store, "read_json", reading)
    one, two = published(store, "v1", b"one"), published(store, "v2", b"two")
    for _ in range(3):
        for sha256 in (one, two):
            assert store.find(sha256) is not None
    assert len(read) == 2, "each manifest once"
    three = published(store, "v2", b"three")
    assert store.find(two) is None
    found = store.find(three)
    assert found is not None
    assert found.read_bytes() == b"three"
    assert len(read) == 3
    found.write_bytes(b"THREE")
    assert store.find(three) is None, "it was written to since its checksum was seen to match"
    store.remove(WeightsKey("org/m", "v1"))
    assert store.find(one) is None


def test_a_partial_file_longer_than_listed_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    into = PartialFile(path, WeightsFile("f", 5, "0" * 64), threading.Event())
    assert into.size == 0
    into.append(b"12345")
    assert "expected 000" in str(into.finish())
    into.close()
    assert path.stat().st_size == 0


def test_a_removal_that_was_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    store = WeightsStore(tmp_path)
    (tmp_path / ".trash" / "1-0" / "files").mkdir(parents=True)
    (tmp_path / ".trash" / "1-0" / "files" / "f").write_text("x")
    store.empty_trash()
    assert not list((tmp_path / ".trash").iterdir())
    assert store.held() == ()
    assert store.verify(WeightsKey("m", "v"), lambda _: None, threading.Event()) == "m@v is not here"


class SlowMirror:
    """Never lists anything, and takes a moment to be cancelled."""

    def __init__(self) -> None:
        self.asked = 0

    async def listing(self, mirror: str, key: WeightsKey) -> Listing:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
        raise AssertionError("an event nobody sets was set")


async def test_who_joins_a_fetch_that_is_just_being_given_up_begins_another(tmp_path: Path) -> None:
    client, key = SlowMirror(), WeightsKey("m", "v")
    weights = Weights(WeightsStore(tmp_path), client, FakeClock(), FetchLimits())  # type: ignore[arg-type]
    first = asyncio.create_task(weights.fetch(key, ["http://x"], lambda _: None))
    while client.asked < 1:
        await asyncio.sleep(0)
    second = asyncio.create_task(weights.fetch(key, ["http://x"], lambda _: None))
    third = asyncio.create_task(weights.fetch(key, ["http://x"], lambda _: None))
    first.cancel()
    while client.asked < 2 and not second.done():
        await asyncio.sleep(0)
    assert not second.done(), "it was not taken along"
    assert not third.done()
    second.cancel()
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert not weights.fetching(key)


async def test_members_are_session_group_and_token_but_never_another_process_of_that_pid() -> None:
    script = "import os,sys,time; os.fork() or os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        env={**os.environ, "LLMGW_SHARD_TOKEN": "of-this-test"},
    )  # fmt: skip
    assert child.stdout is not None
    both = {int(await child.stdout.readline()), int(await child.stdout.readline())}
    try:
        seen = procfs.stat(child.pid)
        assert seen is not None
        found = procfs.members(child.pid, "of-this-test", start_ticks=seen.start_ticks)
        assert {one.pid for one in found} == both
        assert {one.pid for one in procfs.members(child.pid, None)} == {child.pid}
        assert {one.pid for one in procfs.members(None, "of-this-test")} == both
        reused = procfs.members(child.pid, "another-token", start_ticks=seen.start_ticks - 1)
        assert reused == [], "the pid was given to another process"
    finally:
        for pid in both:
            os.kill(pid, signal.SIGKILL)
        await child.wait()
