"""Integrity over time: content read again, rot set aside, its readers cut off, and fetched again."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters.blob_reading import BlobReading
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.proving import ContentGone
from llmgw_mirror.scrub import LOOK_S, SCRUBBING, Scrub
from llmgw_mirror.verifying import Verified

from . import scripted
from .scripted import Upstream
from .slow_reader import reading
from .world import World, content_of, listening, sha256_of, until, world

BIG = content_of(2_500_000)
SHA = sha256_of(BIG)
SMALL = content_of(5_000, seed=9)
HUGE = content_of(24_000_000, seed=4)
FILE = "/v1/weights/org%2Fm/v1/files/w"
DAY_S = 86_400.0


def rot(here: World, sha256: str, at: int = 1_000) -> None:
    """One byte of the disk turns over; length and time stay."""
    path = here.store.blob(sha256)
    seen = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(0o444)
    os.utime(path, (seen.st_atime, seen.st_mtime))


async def verify(here: World, *paths: str) -> list[Verified]:
    words = here.built.keepers.keeping.verifying.verify("org/m", "v1", paths, asked_by="ada")
    return [word async for word in words if word.done]


async def told(here: World, kind: Kind) -> list[Entry]:
    entries = await here.built.history.newest(model=None, version=None, since=None, limit=100)
    return [entry for entry in entries if entry.kind is kind]


def scrub_of(here: World) -> Scrub:
    assert here.built.keepers.scrub is not None, "it is on unless told otherwise"
    return here.built.keepers.scrub


async def test_what_is_right_is_said_to_be_and_when(hub: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with world(tmp_path / "store", clock=clock) as here:
        await here.fetch(Source("a", hub.put("/a", BIG), SHA), Source("b", hub.put("/b", SMALL)))
        clock.jump_unix(1000)
        words = await verify(here)
        assert [(w.path, w.read_bytes, w.trouble) for w in words] == [
            ("a", len(BIG), None), ("b", len(SMALL), None),
        ]  # fmt: skip
        view = await here.mirror.version("org/m", "v1")
        assert view is not None
        assert view.verified_at == clock.unix_s()
        (entry,) = await told(here, Kind.VERIFIED)
        assert (entry.text, entry.asked_by, entry.bytes) == (
            "2 of 2 files are right", "ada", len(BIG) + len(SMALL),
        )  # fmt: skip


async def test_rot_is_set_aside_not_served_told_and_fetched_again(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA), Source("x", hub.put("/x", SMALL)))
    rot(here, SHA)
    async with listening(here) as at:
        bad, good = await verify(here)
        assert good.trouble is None
        assert bad.trouble is not None
        assert "it hashes to" in bad.trouble
        assert SHA not in here.blobs()
        (aside,) = here.store.damaged.iterdir()
        assert aside.name.startswith(SHA)
        async with reading(at, FILE) as node:
            assert node.status == 503
        (entry,) = await told(here, Kind.QUARANTINED)
        assert (entry.model, entry.version, entry.path, entry.bytes) == ("org/m", "v1", "w", len(BIG))
        (download,) = await here.built.downloads.now()
        assert [file.source.path for file in download.files] == ["w"]
        await here.built.upkeep.look()
        assert (await here.settled()).state is WeightsState.PRESENT
        assert here.store.blob(SHA).read_bytes() == BIG
    assert here.built.keepers.prover.quarantined == 1


async def test_one_rotten_content_of_two_versions_is_told_for_both_and_fetched_once(
    hub: Upstream, here: World
) -> None:
    file = Source("w", hub.put("/w", BIG), SHA)
    await here.fetch(file)
    await here.fetch(file, version="v2")
    rot(here, SHA)
    await verify(here)
    assert {entry.version for entry in await told(here, Kind.QUARANTINED)} == {"v1", "v2"}
    await here.built.upkeep.look()
    for version in ("v1", "v2"):
        assert (await here.settled(version=version)).state is WeightsState.PRESENT
    assert hub.asked("/w") == 2


async def test_whoever_is_reading_rotten_content_is_cut_off(hub: Upstream, here: World) -> None:
    sha256 = sha256_of(HUGE)
    await here.fetch(Source("w", hub.put("/w", HUGE), sha256))
    async with listening(here) as at, reading(at, FILE) as node:
        rot(here, sha256, at=23_999_999)
        await verify(here)
        got = await node.rest()
        assert len(got) < len(HUGE)
        assert got == HUGE[: len(got)]
    assert here.built.reads.cut == 1


async def test_readers_of_another_mirror_over_the_store_are_cut_off_too(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    sha256 = sha256_of(HUGE)
    shared: dict[str, Any] = {"dsn": migrated_dsn}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await one.fetch(Source("w", hub.put("/w", HUGE), sha256))
        async with listening(two) as at, reading(at, FILE) as node:
            rot(one, sha256, at=23_999_999)
            await verify(one)
            await two.built.upkeep.look()
            assert len(await node.rest()) < len(HUGE)


async def test_two_who_find_the_same_rot_leave_what_came_in_its_place(hub: Upstream, here: World) -> None:
    """The second has read the rotten file to its end when the good one is there already."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    rot(here, SHA)
    read, on = asyncio.Event(), asyncio.Event()

    async def slowly(count: int, read_bytes: int) -> None:
        read.set()
        await on.wait()

    second = asyncio.create_task(here.built.keepers.prover.prove(SHA, on_chunk=slowly))
    await read.wait()
    (word,) = await verify(here)
    assert word.trouble is not None
    await here.built.upkeep.look()
    assert (await here.settled()).state is WeightsState.PRESENT
    on.set()
    with pytest.raises(ContentGone):
        await second
    assert here.store.blob(SHA).read_bytes() == BIG
    assert len(list(here.store.damaged.iterdir())) == 1


async def test_what_the_disk_cannot_read_any_more_is_rotten(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))

    def broken(reading: BlobReading) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(BlobReading, "more", broken)
        (word,) = await verify(here)
    assert "the disk cannot read it" in (word.trouble or "")
    await here.built.upkeep.look()
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_a_rotten_file_without_a_checksum_must_come_back_as_it_was(hub: Upstream, here: World) -> None:
    """A version never changes its content: nodes may hold the old one."""
    await here.fetch(Source("w", hub.put("/w", BIG)))
    rot(here, SHA)
    hub.put("/w", SMALL)
    hub.etags["/w"] = '"second"'
    await verify(here)
    await here.built.upkeep.look()
    view = await here.settled()
    assert view.state is WeightsState.FAILED
    assert f"expected {len(BIG)}" in (view.files[0].error or "")
    hub.put("/w", BIG)
    await here.mirror.fetch("org/m", "v1", [])
    (file,) = (await here.settled()).files
    assert (file.state, file.sha256, file.as_received) == (WeightsState.PRESENT, SHA, True)


async def test_what_is_not_here_is_told_and_what_is_unknown_refused(hub: Upstream, here: World) -> None:
    hub.acts_on["/gone"] = scripted.status(404)
    await here.fetch(Source("gone", hub.put("/gone", SMALL)), Source("w", hub.put("/w", BIG), SHA))
    gone, whole = await verify(here)
    assert "not here: failed" in (gone.trouble or "")
    assert whole.trouble is None
    with pytest.raises(InvalidRequest, match="has no file 'y'"):
        await verify(here, "y")
    with pytest.raises(NotFound):
        await anext(here.built.keepers.keeping.verifying.verify("org/m", "v9"))


async def test_content_removed_while_it_is_verified_is_not_called_rotten(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    rot(here, SHA)
    gone = asyncio.Event()

    async def slowly(count: int, read_bytes: int) -> None:
        await gone.wait()

    proving = asyncio.create_task(here.built.keepers.prover.prove(SHA, on_chunk=slowly))
    await here.removed()
    gone.set()
    with pytest.raises(ContentGone):
        await proving
    assert list(here.store.damaged.iterdir()) == []


async def test_the_scrub_reads_what_was_read_longest_ago_and_nothing_too_soon(
    hub: Upstream, tmp_path: Path
) -> None:
    clock, thread = FakeClock(), DiskThreads(1)
    rate = 1e12
    async with world(tmp_path / "store", clock=clock, scrub_rate_bytes_s=rate) as here:
        for name, content in (("a", BIG), ("b", SMALL)):
            await here.fetch(Source(name, hub.put(f"/{name}", content)), version=name)
        os.utime(here.store.blob(SHA), (clock.unix_s() - 29 * DAY_S,) * 2)
        os.utime(here.store.blob(sha256_of(SMALL)), (clock.unix_s() - 31 * DAY_S,) * 2)
        assert await scrub_of(here).step(thread) == 0.0
        assert here.store.blob_seen(sha256_of(SMALL)) == (len(SMALL), clock.unix_s())
        assert await scrub_of(here).step(thread) == LOOK_S
        assert here.built.keepers.prover.read_bytes == len(SMALL)
        clock.jump_unix(1.5 * DAY_S)
    # A restart knows what was read when.
    async with world(tmp_path / "store", clock=clock, scrub_rate_bytes_s=rate) as here:
        assert await scrub_of(here).step(thread) == 0.0
        assert here.store.blob_seen(SHA) == (len(BIG), clock.unix_s())
        assert await scrub_of(here).step(thread) == LOOK_S
    thread.close()


async def test_the_scrub_finds_rot_by_itself(hub: Upstream, tmp_path: Path) -> None:
    async with world(tmp_path / "store", scrub_interval_days=1e-9) as here:
        await here.fetch(Source("w", hub.put("/w", BIG), SHA))
        rot(here, SHA)
        scrubbing = asyncio.create_task(scrub_of(here).run())
        await until(lambda: here.built.keepers.prover.quarantined == 1)
        scrubbing.cancel()
        await here.built.upkeep.look()
        assert (await here.settled()).state is WeightsState.PRESENT


async def test_the_scrub_keeps_to_its_rate(hub: Upstream, tmp_path: Path) -> None:
    clock, thread = FakeClock(), DiskThreads(1)
    async with world(tmp_path / "store", clock=clock, scrub_rate_bytes_s=1e6) as here:
        await here.fetch(Source("w", hub.put("/w", HUGE)))
        clock.jump_unix(40 * DAY_S)
        step = asyncio.create_task(scrub_of(here).step(thread))
        began = clock.monotonic_s()
        while not step.done():
            await asyncio.sleep(0.001)
            if clock.sleepers:
                await clock.advance(0.1)
        assert await step == 0.0
        assert clock.monotonic_s() - began == pytest.approx(len(HUGE) / 1e6, abs=1.0)
    thread.close()


async def test_the_scrub_gives_way_to_nodes_that_read(hub: Upstream, tmp_path: Path) -> None:
    clock, thread = FakeClock(), DiskThreads(1)
    async with world(tmp_path / "store", clock=clock, scrub_rate_bytes_s=1e12) as here:
        await here.fetch(Source("w", hub.put("/w", HUGE)))
        clock.jump_unix(40 * DAY_S)
        async with listening(here) as at, reading(at, FILE):
            step = asyncio.create_task(scrub_of(here).step(thread))
            await until(lambda: here.built.keepers.prover.read_bytes > 0)
            await clock.until_asleep()
            first = here.built.keepers.prover.read_bytes
            await clock.advance(29)
            await asyncio.sleep(0.05)
            assert here.built.keepers.prover.read_bytes == first
            # But never for good.
            await clock.advance(2)
            await until(lambda: here.built.keepers.prover.read_bytes > first)
        while not step.done():
            await asyncio.sleep(0.001)
            if clock.sleepers:
                await clock.advance(1)
    thread.close()


async def test_one_mirror_scrubs_at_a_time(hub: Upstream, tmp_path: Path, migrated_dsn: str) -> None:
    thread = DiskThreads(1)
    shared: dict[str, Any] = {"dsn": migrated_dsn, "scrub_interval_days": 1e-9}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await one.fetch(Source("w", hub.put("/w", SMALL)))
        assert await one.built.ledger.acquire(SCRUBBING, ttl_s=60) is not None
        assert await scrub_of(two).step(thread) == LOOK_S
        assert two.built.keepers.prover.read_bytes == 0
        assert await scrub_of(one).step(thread) == 0.0
        assert await scrub_of(two).step(thread) == 0.0
    thread.close()


async def test_content_that_somebody_doubts_is_proved_at_once(hub: Upstream, here: World) -> None:
    """As the hasher of pieces does, which reads content for its own reasons."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA), Source("x", hub.put("/x", SMALL)))
    suspects = here.built.keepers.suspects
    proving = asyncio.create_task(suspects.run())
    suspects.doubt(sha256_of(SMALL))
    suspects.doubt("00" * 32)
    rot(here, SHA)
    suspects.doubt(SHA)
    await until(lambda: here.built.keepers.prover.quarantined == 1)
    assert here.blobs() == [sha256_of(SMALL)]
    proving.cancel()


async def test_damaged_content_is_kept_for_a_while_and_not_without_bound(
    hub: Upstream, tmp_path: Path
) -> None:
    bounds: dict[str, Any] = {"damaged_keep_days": 1, "damaged_keep_bytes": len(BIG)}
    async with world(tmp_path / "store", **bounds) as here:
        await here.fetch(Source("w", hub.put("/w", BIG), SHA))
        for _ in range(2):
            rot(here, SHA)
            await verify(here)
            await here.built.upkeep.look()
            await here.settled()
        assert len(list(here.store.damaged.iterdir())) == 2
        await here.built.upkeep.tidy()
        (newest,) = here.store.damaged.iterdir()
        os.utime(newest, (1.0, 1.0))
        await here.built.upkeep.tidy()
        assert list(here.store.damaged.iterdir()) == []
