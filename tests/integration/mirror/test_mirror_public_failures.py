"""Failures of other mirrors that are public, by their numbers: two writers, no file locks, a full disk, a
whole cluster at once. More of them where their subject is tested."""

import asyncio
import errno
import fcntl
import os
import re
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from llmgw_mirror.core.content_keys import key_id
from llmgw_mirror.core.versions import Source, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, listening, sha256_of, until, world

BIG = content_of(3_000_000)
SHA = sha256_of(BIG)
SMALL = content_of(5_000, seed=9)


async def test_h2_a_whole_part_that_was_not_moved_is_not_asked_for_again(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def refuses(source: str | Path, target: str | Path) -> None:
        if str(source).endswith(".part"):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", refuses)
    file = await here.fetch_one(hub.put("/w", BIG), sha256=SHA)
    assert (file.error or "").startswith("writing failed: Input/output error; 3000000 bytes are kept — ")
    monkeypatch.setattr(os, "rename", real)
    await here.mirror.retry("org/m", "v1")
    assert (await here.settled()).state is WeightsState.PRESENT
    assert len(hub.requests) == 1


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
async def test_h5_a_file_system_without_locks_is_no_hindrance(
    hub: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuses(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuses)
    async with world(tmp_path / "store") as here:
        assert (await here.fetch_one(hub.put("/w", BIG), sha256=SHA)).state is WeightsState.PRESENT


async def test_h4_locks_that_are_granted_to_everybody_do_no_harm(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two mirrors over one store, and flock says yes to both: still one transfer, one writer."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    async with (
        world(tmp_path / "store", dsn=migrated_dsn) as one,
        world(tmp_path / "store", dsn=migrated_dsn) as two,
    ):
        files = [Source("w", hub.put("/w", BIG), SHA)]
        await asyncio.gather(one.mirror.fetch("org/m", "v1", files), two.mirror.fetch("org/m", "v1", files))
        for here in (one, two):
            assert (await here.settled()).state is WeightsState.PRESENT
        assert len(hub.requests) == 1
        assert one.store.blob(SHA).read_bytes() == BIG


async def test_h9_a_disk_that_fills_up_half_way_stops_that_file_alone(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason and what is kept; once there is room it goes on from there."""
    real, full = os.pwrite, True
    key = key_id(f"sha256:{SHA}")

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if full and key in os.readlink(f"/proc/self/fd/{fd}") and offset >= 1_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    others = [Source(f"f{n}", hub.put(f"/{n}", content_of(2_000_000, seed=n))) for n in range(3)]
    view = await here.fetch(Source("w", hub.put("/w", BIG), SHA), *others)
    states = {file.source.path: file.state.value for file in view.files}
    assert states == {"f0": "present", "f1": "present", "f2": "present", "w": "failed"}
    (error,) = [file.error for file in view.files if file.error is not None]
    assert error.startswith("the disk is full (No space left on device): ")
    assert "bytes are kept — free some space, then go on: llmgwctl mirror fetch --retry" in error
    kept = here.parts()[0].stat().st_size
    assert kept >= 1_000_000
    full = False
    await here.mirror.retry("org/m", "v1")
    assert (await here.settled()).state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests if request.path == "/w"] == [0, kept]


async def test_h9_two_that_cannot_both_end_do_not_both_begin(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for one and a half: what the first will need is promised to it, with its first byte."""
    monkeypatch.setattr(here.store, "disk", lambda: (10**9, len(BIG) * 3 // 2))
    opened = asyncio.Event()

    async def begins(x: scripted.Exchange) -> None:
        await x.head(200, Content_Length=len(BIG), ETag=x.etag)
        await x.send(BIG[:1000])
        await opened.wait()
        await x.send(BIG[1000:])

    hub.acts_on["/a"] = begins
    await here.mirror.fetch("org/m", "v1", [Source("a", hub.put("/a", BIG), SHA, len(BIG))])
    await here.received(1000)
    second = await here.fetch(Source("b", hub.put("/b", content_of(len(BIG), seed=2))), version="v2")
    assert second.files[0].error is not None
    assert f"the disk has no room: {len(BIG)} bytes are needed" in second.files[0].error
    # Its first bytes wait in memory: on the disk all of it is still to come.
    assert f"{len(BIG)} promised to other files" in second.files[0].error
    assert sum(part.stat().st_size for part in here.parts() if part.exists()) <= 1000
    opened.set()
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_h12_forty_nodes_at_once_cost_the_origin_one_file(hub: Upstream, here: World) -> None:
    """All ask before the first byte is here; each gets every byte, and the origin sends them once."""
    opened = asyncio.Event()
    hub.acts.append(scripted.gate(opened))
    url = hub.put("/w", BIG)
    asked = 0

    async def node(session: aiohttp.ClientSession, at: str) -> bytes:
        nonlocal asked
        await here.mirror.fetch("org/m", "v1", [Source("w", url, SHA, len(BIG))])
        told = False
        while True:
            async with session.get(URL(f"http://{at}/v1/weights/org%2Fm/v1", encoded=True)) as answer:
                if answer.status == 200:
                    break
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) >= 1
            asked, told = asked + (not told), True
            await asyncio.sleep(0.05)
        async with session.get(URL(f"http://{at}/v1/weights/org%2Fm/v1/files/w", encoded=True)) as answer:
            return await answer.read()

    async with (
        listening(here) as at,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        nodes = [asyncio.ensure_future(node(session, str(at))) for _ in range(40)]
        await until(lambda: asked == 40)
        opened.set()
        for got in await asyncio.gather(*nodes):
            assert got == BIG
    assert len(hub.requests) == 1
    assert here.built.tally.received_bytes == len(BIG)


async def test_h18_no_name_that_others_gave_is_a_name_on_the_disk(hub: Upstream, tmp_path: Path) -> None:
    """Of the repository, the version, a file, its URL: names on the disk are our ids and words."""
    opened, foreign = asyncio.Event(), ("owner", "wörk", "release", "folder", "strange", "address")

    async def half(x: scripted.Exchange) -> None:
        await x.head(200, Content_Length=len(BIG), ETag=x.etag)
        await x.send(BIG[:2_000_000])
        await opened.wait()
        await x.send(BIG[2_000_000:])

    async with world(tmp_path / "store") as here:
        hub.acts_on["/address-slow"] = half
        files = [
            Source("folder/strange one.bin", hub.put("/address", SMALL)),
            Source("folder/strange-slow.bin", hub.put("/address-slow", BIG), SHA),
            Source("strange-wrong.bin", hub.put("/address-wrong", b"abc"), SHA),
        ]
        await here.mirror.fetch("owner/wörk", "release-1", files)
        await until(lambda: len(here.parts()) == 1 and len(here.blobs()) == 1)
        seen = names_below(here.store.root)
        opened.set()
        await here.settled("owner/wörk", "release-1")
        await here.built.keepers.keeping.removing.remove("owner/wörk", "release-1")
        seen |= names_below(here.store.root)
    assert len(seen) > 10
    assert [name for name in seen if any(word in name.lower() for word in foreign)] == []
    assert all(re.fullmatch(r"[0-9a-z.-]+", name) for name in seen), seen


def names_below(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*")}
