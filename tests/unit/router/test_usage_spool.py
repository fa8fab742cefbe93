"""Spools and sinks on a real disk: order, roll-over, torn ends, rotation, repetition that changes nothing."""

import errno
import os
import threading
from pathlib import Path

import msgspec
import pytest

from llmgw_kit.errors import Unavailable
from llmgw_router.adapters.usage_file import FileUsage
from llmgw_router.adapters.usage_spool import BATCH, SpoolFolder
from llmgw_router.core.usage_lines import Closed, Opened, UsageRecord, lines_in, record_of
from llmgw_router.relay.spool import Spool

SMALL = 128 * 1024


def opened(name: str) -> Opened:
    return Opened(name, f"r-{name}", 1_000, "k", None, "m", "/v1/chat/completions")


def closed(name: str) -> Closed:
    return Closed(
        name, f"r-{name}", 1_000, "k", None, "m", "/v1/chat/completions", 2_000, "m/1", 200, None, "engine",
        True, 3, None, 4, 5.0, 6.0,
    )  # fmt: skip


def die(spool: Spool) -> None:
    """What the kernel does for a process that ends: its lock goes; what it mapped stays written."""
    os.close(spool._lock)


def take(folder: SpoolFolder) -> list[UsageRecord]:
    records: list[UsageRecord] = []
    while True:
        batch = folder.read()
        records += batch.records
        folder.taken(batch)
        if not batch.more:
            return records


def test_lines_come_in_their_order_and_once(tmp_path: Path) -> None:
    spool, folder = Spool(tmp_path, "w1", list, size=SMALL), SpoolFolder(tmp_path, "r1")
    assert take(folder) == []
    for name in ("a", "b"):
        assert spool.append(opened(name))
    assert spool.append(closed("b"))
    assert [one.usage_id for one in take(folder)] == ["b"]
    assert take(folder) == []
    assert spool.append(closed("a"))
    (row,) = take(folder)
    assert row == record_of(closed("a"), "r1")


def test_a_batch_that_was_not_taken_is_read_again(tmp_path: Path) -> None:
    spool, folder = Spool(tmp_path, "w1", list, size=SMALL), SpoolFolder(tmp_path, "r1")
    spool.append(opened("a"))
    spool.append(closed("a"))
    assert [one.usage_id for one in folder.read().records] == ["a"]
    assert [one.usage_id for one in take(folder)] == ["a"]


def test_files_roll_over_with_what_runs_and_go_when_they_are_read(tmp_path: Path) -> None:
    running = [opened("long")]
    spool, folder = Spool(tmp_path, "w1", lambda: running, size=SMALL), SpoolFolder(tmp_path, "r1")
    spool.append(running[0])
    many = 5 * SMALL // 200
    for number in range(many):
        if spool.wants_next and number % 2:
            spool.prepare()
        assert spool.append(closed(f"n{number}"))
    assert len(list(tmp_path.glob("*.usage"))) > 2
    spool.prepare()
    assert [one.usage_id for one in take(folder)] == [f"n{number}" for number in range(many)]
    assert len(list(tmp_path.glob("*.usage"))) == 1, "what runs is in the newest: no other is kept for it"
    die(spool)
    (lost,) = take(SpoolFolder(tmp_path, "r1"))[-1:]
    assert (lost.usage_id, lost.source, lost.complete, lost.status) == ("long", "unknown", False, None)
    assert list(tmp_path.iterdir()) == []


def test_a_successor_reads_all_again_and_waits_for_who_lives(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "w1", list, size=SMALL)
    spool.append(opened("a"))
    spool.append(opened("b"))
    spool.append(closed("a"))
    first = SpoolFolder(tmp_path, "r1")
    assert [one.usage_id for one in take(first)] == ["a"]
    first.close()
    second = SpoolFolder(tmp_path, "r1")
    assert [one.usage_id for one in take(second)] == ["a"], "told again; the sink knows it"
    spool.append(closed("b"))
    die(spool)
    assert [(one.usage_id, one.source) for one in take(second)] == [("b", "engine")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("torn", [b'["c","x"', b'["c","x"\0\0,1]\n', b"nonsense\n"])
def test_a_line_that_its_process_died_in_is_none(tmp_path: Path, torn: bytes) -> None:
    spool = Spool(tmp_path, "w1", list, size=SMALL)
    spool.append(opened("a"))
    assert spool._map is not None
    spool._map[spool._at : spool._at + len(torn)] = torn
    die(spool)
    (row,) = take(SpoolFolder(tmp_path, "r1"))
    assert (row.usage_id, row.source) == ("a", "unknown")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_none_ends_what_lives_and_is_passed_over_in_what_is_dead() -> None:
    first, second = (msgspec.json.encode(closed(name)) + b"\n" for name in "ab")
    data = first + b'["c",\0\0]\n' + second
    assert [line.usage_id for line, _ in lines_in(data, complete=False)] == ["a"]
    assert [line.usage_id for line, _ in lines_in(data, complete=True)] == ["a", "b"]
    assert [end for _, end in lines_in(data + b"\0" * 9, complete=True)][-1] == len(data)


def test_more_than_a_batch(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "w1", list)
    for number in range(BATCH + 10):
        spool.append(closed(str(number)))
    folder = SpoolFolder(tmp_path, "r1")
    assert folder.read().more
    assert [one.usage_id for one in take(folder)] == [str(number) for number in range(BATCH + 10)]


def test_a_disk_without_room_is_said_and_a_line_that_is_too_long_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, "w1", list, size=1024)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    wrote = [spool.append(closed(str(number))) for number in range(20)]
    assert wrote[0]
    assert not wrote[-1]
    assert list(tmp_path.glob("*.next")) == []
    with pytest.raises(OSError, match="No space"):
        Spool(tmp_path, "w2", list)
    assert list(tmp_path.glob("w2*")) == []
    monkeypatch.undo()
    assert spool.append(closed("again")), "as soon as there is room"


# --- the file

RECORD = record_of(closed("a"), "r1")


def named(*names: str) -> list[UsageRecord]:
    return [msgspec.structs.replace(RECORD, usage_id=name) for name in names]


def ids(path: Path) -> list[str]:
    return [msgspec.json.decode(line)["usage_id"] for line in path.read_bytes().splitlines()]


async def test_what_a_former_life_wrote_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "usage.jsonl"
    await FileUsage(path).put(named("a", "b"))
    path.write_bytes(path.read_bytes() + b'{"usage_id":"c","half')
    second = FileUsage(path)
    await second.put(named("a", "b", "c", "d"))
    assert ids(path) == ["a", "b", "c", "d"]
    second.settled()
    await second.put(named("e"))
    assert ids(path)[-1] == "e"
    assert path.stat().st_mode & 0o077 == 0


async def test_a_long_file_is_renamed_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    sink = FileUsage(path, rotate_bytes=1, kept=2)
    for name in "abcd":
        await sink.put(named(name))
    assert not path.exists()
    assert (ids(tmp_path / "usage.jsonl.1"), ids(tmp_path / "usage.jsonl.2")) == (["d"], ["c"])
    assert not (tmp_path / "usage.jsonl.3").exists()
    again = FileUsage(path, kept=2)
    await again.put(named("d", "e"))
    assert ids(path) == ["e"], "also what stands in the file before is known"


async def test_a_file_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    with pytest.raises(Unavailable):
        await FileUsage(tmp_path / "in-the-way" / "usage.jsonl").put(named("a"))


async def test_a_file_that_cannot_be_renamed_goes_on_growing_and_has_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a mount of a single file: EBUSY. No older file is lost to the attempts either."""
    path = tmp_path / "usage.jsonl"
    sink = FileUsage(path, rotate_bytes=300, kept=2)
    for name in "ab":
        await sink.put(named(name))
    rename = Path.rename

    def busy(self: Path, target: Path) -> Path:
        if self == path:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", busy)
    for name in "cdefg":
        await sink.put(named(name))
    assert ids(path) == list("cdefg")
    assert (ids(tmp_path / "usage.jsonl.1"), ids(tmp_path / "usage.jsonl.2")) == (["b"], ["a"])
    assert [one.levelname for one in caplog.records] == ["ERROR"], "told once"
    monkeypatch.undo()
    await sink.put(named("h"))
    assert ids(tmp_path / "usage.jsonl.1") == list("cdefgh")
    assert ids(tmp_path / "usage.jsonl.2") == ["b"]


async def test_the_file_is_read_and_written_beside_the_loop_and_is_on_the_disk_when_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR 0027: the spool's files go after that, and with a power cut nothing of them may be gone."""
    loop, synced, sync = threading.get_ident(), [], os.fdatasync

    def fdatasync(fd: int) -> None:
        assert threading.get_ident() != loop
        sync(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    path = tmp_path / "usage.jsonl"
    await FileUsage(path).put(named("a", "b"))
    assert synced == [path.stat().st_size]
