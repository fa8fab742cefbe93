"""Reading a log that grows, is cut, is replaced and goes away; and never more of it than was said."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from llmgw_agent.adapters import log_files, processes
from llmgw_agent.adapters.log_files import LogFile
from llmgw_agent.core.logs import Chunk
from llmgw_agent.loops.reading import LOOK_S, PIECES_A_LOOK, read_log
from llmgw_kit.errors import NotFound
from llmgw_kit.testing.clock import FakeClock


def add(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def joined(chunks: list[Chunk]) -> bytes:
    return b"".join(chunk.data for chunk in chunks)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.log"


@pytest.mark.parametrize("lines", [0, 1, 3, 500, 9999])
def test_a_tail_is_the_last_lines_and_reading_goes_on_after_it(path: Path, lines: int) -> None:
    text = [b"line %d %s\n" % (number, b"x" * (number % 97)) for number in range(1000)]
    path.write_bytes(b"".join(text))
    log = LogFile(path)
    assert joined(log.tail(lines)) == b"".join(text[len(text) - lines :] if lines < 1000 else text)
    assert log.more() is None
    add(path, b"next\n")
    assert log.more() == Chunk(b"next\n")
    assert log.more() is None


def test_a_last_line_without_an_end_is_read_too(path: Path) -> None:
    path.write_bytes(b"a\nb\nno end")
    assert joined(LogFile(path).tail(2)) == b"b\nno end"


def test_a_carriage_return_ends_no_line(path: Path) -> None:
    path.write_bytes(b"a\n10 %\r20 %\r\nb\n")
    assert joined(LogFile(path).tail(2)) == b"10 %\r20 %\r\nb\n"


def test_a_log_without_a_single_line_end_is_bounded(path: Path) -> None:
    path.write_bytes(b"x" * (3 << 20))
    chunks = LogFile(path).tail(10_000)
    assert len(joined(chunks)) <= log_files.TAIL_MOST_BYTES
    assert all(len(chunk.data) <= log_files.CHUNK_BYTES for chunk in chunks)


@pytest.mark.parametrize("lines", [0, 1])
def test_a_log_cut_in_place_shows_a_gap_and_goes_on_from_its_beginning(path: Path, lines: int) -> None:
    path.write_bytes(b"old\n" * 100)
    log = LogFile(path)
    log.tail(lines)
    os.truncate(path, 0)
    add(path, b"new\n")
    assert log.more() == Chunk(b"new\n", gap=True)
    assert log.more() is None


def test_a_log_cut_and_grown_past_the_old_place_is_seen_by_what_stood_there(path: Path) -> None:
    path.write_bytes(b"old line\n" * 10)
    log = LogFile(path)
    log.tail(1)
    os.truncate(path, 0)
    add(path, b"another text\n" * 20)
    chunk = log.more()
    assert chunk is not None
    assert chunk.gap
    assert chunk.data == b"another text\n" * 20, "nothing of the new text is lost"


def test_a_replaced_log_shows_a_gap(path: Path) -> None:
    path.write_bytes(b"same\n")
    log = LogFile(path)
    log.tail(5)
    aside = path.with_name("new")
    aside.write_bytes(b"same\nmore\n")
    aside.replace(path)
    assert log.more() == Chunk(b"same\nmore\n", gap=True)


def test_a_follower_far_behind_is_taken_to_the_end(path: Path) -> None:
    path.write_bytes(b"")
    log = LogFile(path)
    log.tail(10)
    add(path, b"y" * (log_files.BEHIND_MOST_BYTES + 1))
    chunk = log.more()
    assert chunk is not None
    assert (chunk.gap, len(chunk.data)) == (True, log_files.CHUNK_BYTES)
    assert log.more() is None


def test_after_a_rotation_the_tail_reaches_into_what_was_put_aside(path: Path) -> None:
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    processes.rotate(path, most_bytes=200)
    add(path, b"after\n")
    chunks = LogFile(path).tail(3)
    assert joined(chunks) == b"line 98\nline 99\nafter\n"
    assert [chunk.gap for chunk in chunks] == [False, True], "what came between copy and cut may be lost"


class Reader:
    """One reading under way."""

    def __init__(self, path: Path, clock: FakeClock, *, lines: int = 10, follow: bool = True) -> None:
        self.got: list[Chunk] = []
        self.alive = True
        self.task = asyncio.ensure_future(
            read_log(
                LogFile(path), self._say, lines=lines, follow=follow, alive=lambda: self.alive, clock=clock
            )
        )
        self._clock = clock

    async def _say(self, chunk: Chunk) -> None:
        self.got.append(chunk)

    async def look(self) -> None:
        """Until it sleeps, then one look further."""
        await self.settle()
        await self._clock.advance(LOOK_S)
        await self.settle()

    async def settle(self) -> None:
        """Files are read in threads."""
        for _ in range(200):
            if self.task.done() or self._clock.sleepers:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it neither sleeps nor ends")


async def test_a_follow_ends_when_the_engine_has_and_its_last_words_were_read(
    path: Path, fake_clock: FakeClock
) -> None:
    path.write_bytes(b"begin\n")
    reader = Reader(path, fake_clock)
    await reader.look()
    add(path, b"working\n")
    await reader.look()
    add(path, b"last words\n")
    reader.alive = False
    await reader.look()
    await reader.task
    assert joined(reader.got) == b"begin\nworking\nlast words\n"


async def test_what_one_look_sends_is_bounded(path: Path, fake_clock: FakeClock) -> None:
    path.write_bytes(b"")
    reader = Reader(path, fake_clock)
    await reader.look()
    add(path, b"z" * (20 * log_files.CHUNK_BYTES))
    await reader.look()
    assert len(reader.got) == PIECES_A_LOOK
    await reader.look()
    await reader.look()
    assert len(reader.got) == 20
    reader.task.cancel()


async def test_who_follows_before_the_launch_waits_for_the_log(path: Path, fake_clock: FakeClock) -> None:
    reader = Reader(path, fake_clock)
    await reader.look()
    assert not reader.task.done()
    path.write_bytes(b"launched\n")
    await reader.look()
    assert joined(reader.got) == b"launched\n"
    reader.task.cancel()


@pytest.mark.parametrize("follow", [True, False])
async def test_no_log_at_all_is_said(path: Path, fake_clock: FakeClock, *, follow: bool) -> None:
    reader = Reader(path, fake_clock, follow=follow)
    reader.alive = False
    with pytest.raises(NotFound, match="there is no log"):
        await reader.task


async def test_a_log_that_goes_away_in_the_middle_ends_the_reading(path: Path, fake_clock: FakeClock) -> None:
    path.write_bytes(b"here\n")
    reader = Reader(path, fake_clock)
    await reader.settle()
    path.unlink()
    await fake_clock.advance(LOOK_S)
    with pytest.raises(NotFound, match="there is no log"):
        await reader.task
