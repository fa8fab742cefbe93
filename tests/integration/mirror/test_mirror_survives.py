"""Nothing from outside ends or freezes a mirror: a store that is away for a moment, no descriptors left."""

import asyncio
import json
import logging
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from llmgw_kit.errors import Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.testing.processes import Cage
from llmgw_mirror.adapters.descriptors import CONNECTIONS_SHARE
from llmgw_mirror.adapters.piece_hashes import PieceHashes
from llmgw_mirror.core.versions import Source

from .scripted import Upstream
from .test_mirror_process import BIG, Running, source, start
from .world import PATIENCE_S, World, content_of, listening, sha256_of, until

PIECE = 64 << 10
FILE = "/v1/weights/org%2Fm/v1/files/w.bin"


async def test_content_that_cannot_be_read_now_does_not_end_the_proving_of_doubted_content(
    hub: Upstream, here: World
) -> None:
    """A folder in its place: opening it is a fault of the disk's, and no rot."""
    first, second = content_of(1000), content_of(2000, seed=2)
    await here.fetch(Source("a", hub.put("/a", first)), Source("b", hub.put("/b", second)))
    blob = here.store.blob(sha256_of(first))
    blob.unlink()
    blob.symlink_to(blob.name)
    suspects = here.built.keepers.suspects
    task = asyncio.create_task(suspects.run())
    suspects.doubt(sha256_of(first))
    suspects.doubt(sha256_of(second))
    await until(lambda: here.built.keepers.prover.read_bytes == len(second) or task.done())
    assert not task.done(), task.exception()
    await cancel_all(task)


async def test_pieces_of_what_was_published_while_the_disk_was_away_are_made_when_it_is_back(
    hub: Upstream, here: World, fake_clock: FakeClock
) -> None:
    made = PieceHashes(here.store, fake_clock, piece_bytes=PIECE)
    away = here.store.blobs.with_name("away")
    here.store.blobs.rename(away)
    task = asyncio.create_task(made.watch(1.0))
    try:
        await until(lambda: fake_clock.sleepers == 1 or task.done())
        assert not task.done(), task.exception()
        away.rename(here.store.blobs)
        await fake_clock.advance(1.0)
        await until(lambda: fake_clock.sleepers == 1)
        await here.fetch(Source("w.bin", hub.put("/w", content_of(3 * PIECE))))
        here.store.blobs.rename(away)
        for _ in range(3):
            await fake_clock.advance(1.0)
            await until(lambda: fake_clock.sleepers == 1 or task.done())
            assert not task.done(), task.exception()
        away.rename(here.store.blobs)
        await fake_clock.advance(1.0)
        notes = here.store.root / "pieces"
        await until(lambda: len(list(notes.glob("*/*.json"))) == 1 or task.done())
        assert not task.done(), task.exception()
    finally:
        await cancel_all(task)
        await made.close()


async def test_a_ledger_that_is_away_is_told_once_and_so_is_its_coming_back(
    here: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away() -> None:
        raise Unavailable("Postgres does not answer: TimeoutError", code="postgres_unavailable")

    await here.mirror.fetch("org/m", "v1", [Source("w", "http://127.0.0.1:1/w")])
    await here.settled()
    with caplog.at_level(logging.INFO, logger="llmgw_mirror.upkeep"):
        with monkeypatch.context() as patch:
            patch.setattr(here.built.upkeep, "look", away)
            for _ in range(5):
                await here.built.upkeep.once()
        for _ in range(3):
            await here.built.upkeep.once()
    told = [record.getMessage() for record in caplog.records if "finished" in record.getMessage()]
    assert told == [
        "this pass is not finished: Postgres does not answer: TimeoutError",
        "passes are finished again, after 0 s",
    ]


@pytest.mark.parametrize("where", ["its folder", "the file"])
async def test_a_node_that_meets_trouble_with_the_disk_is_told_when_to_ask_again(
    where: str, hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("w.bin", hub.put("/w", BIG)))
    async with listening(here) as at, aiohttp.ClientSession() as session:
        assert here.answers is not None
        if where == "the file":
            monkeypatch.setattr(here.answers, "_content", lambda _: Path(__file__) / "no folder")
        else:
            here.store.blobs.rename(here.store.root / "away")
        async with session.get(URL(f"http://{at}{FILE}", encoded=True)) as answer:
            said = await answer.json()
            assert (answer.status, said["error"]["code"]) == (503, "disk_trouble")
            assert answer.headers["Retry-After"] == "2"


async def fetched(mirror: Running, hub: Upstream) -> None:
    await mirror.fetch(source("w.bin", hub.put("/w", BIG)))
    assert (await mirror.settled())[0] == 200


async def test_a_store_that_is_away_for_a_moment_ends_no_mirror(
    cage: Cage, hub: Upstream, tmp_path: Path
) -> None:
    mirror = await start(cage, tmp_path, pass_interval_s=0.2)
    await fetched(mirror, hub)
    blobs, away = tmp_path / "store" / "blobs", tmp_path / "store" / "away"
    blobs.rename(away)
    status, body = await mirror.get(FILE)
    assert (status, json.loads(body)["error"]["code"]) == (503, "disk_trouble")
    await asyncio.sleep(1.5)
    assert (await mirror.get("/healthz"))[0] == 200
    assert mirror.child.code is None, mirror.child.tail()
    away.rename(blobs)
    async with asyncio.timeout(PATIENCE_S):
        while (await mirror.get(FILE)) != (200, BIG):
            await asyncio.sleep(0.1)
    assert "by a bug" not in mirror.child.tail()
    assert len(hub.requests) == 1, "nothing is fetched again"
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0


async def test_connections_that_say_nothing_take_no_descriptors_from_the_rest(
    cage: Cage, hub: Upstream, tmp_path: Path
) -> None:
    """Of 400 descriptors."""
    mirror = await start(cage, tmp_path, pass_interval_s=0.2, argv=("prlimit", "--nofile=400:400"))
    await fetched(mirror, hub)
    with ExitStack() as stack:
        lines = [
            stack.enter_context(socket.create_connection((mirror.http.host, mirror.http.port)))
            for _ in range(600)
        ]
        await asyncio.sleep(1.0)
        # The ones above the bound were told so and closed.
        told = sum(answered(line) for line in lines)
        assert told >= 600 - 400 // CONNECTIONS_SHARE
        assert mirror.child.code is None, mirror.child.tail()
        assert (await mirror.get("/healthz", mirror.admin))[0] == 200
    async with asyncio.timeout(PATIENCE_S):
        while (await mirror.get(FILE))[0] != 200:
            await asyncio.sleep(0.1)
    said = mirror.child.tail()
    assert "by a bug" not in said
    assert "Too many open files" not in said
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0


def answered(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return line.recv(200).startswith(b"HTTP/1.1 503 ")
    except OSError:
        return False


async def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(cage: Cage, tmp_path: Path) -> None:
    mirror = await start(cage, tmp_path, argv=("prlimit", "--nofile=256:2000"))
    assert resource.prlimit(mirror.child.pid, resource.RLIMIT_NOFILE) == (2000, 2000)
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0
