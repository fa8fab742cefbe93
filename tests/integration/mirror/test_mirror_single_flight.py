"""However many ask, however many mirrors there are: one transfer a file (M22)."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg

from llmgw_mirror.core.versions import Source, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, sha256_of, until, world

BIG = content_of(2_500_000)
SHA = sha256_of(BIG)


async def test_fifteen_shards_asked_for_by_fifteen_nodes_at_once(hub: Upstream, here: World) -> None:
    shards = [content_of(300_000 + n, seed=n) for n in range(15)]
    files = [
        Source(f"model-{n:05}-of-00015.safetensors", hub.put(f"/{n}", shard), sha256_of(shard), len(shard))
        for n, shard in enumerate(shards)
    ]
    views = await asyncio.gather(*(here.mirror.fetch("org/m", "v1", files) for _ in range(15)))
    assert {view.version for view in views} == {"v1"}
    view = await here.settled()
    assert view.state is WeightsState.PRESENT
    assert len(hub.requests) == 15
    assert len(here.blobs()) == 15
    for file, shard in zip(view.files, shards, strict=True):
        assert file.sha256 is not None
        assert here.store.blob(file.sha256).read_bytes() == shard


async def test_no_more_than_the_set_number_at_once(hub: Upstream, tmp_path: Path) -> None:
    opened = asyncio.Event()
    hub.acts.extend([scripted.gate(opened)] * 6)
    async with world(tmp_path / "store", parallel_fetches=2) as here:
        files = [Source(f"f{n}", hub.put(f"/{n}", content_of(1000, seed=n))) for n in range(6)]
        await here.mirror.fetch("org/m", "v1", files)
        await until(lambda: len(hub.requests) == 2)
        await asyncio.sleep(0)
        assert len(hub.requests) == 2
        opened.set()
        assert (await here.settled()).state is WeightsState.PRESENT


async def test_one_content_in_two_versions_is_fetched_and_kept_once(hub: Upstream, here: World) -> None:
    opened = asyncio.Event()
    hub.acts.append(scripted.gate(opened))
    one = Source("w", hub.put("/rev1/w", BIG), SHA)
    two = Source("w", hub.put("/rev2/w", BIG), SHA)
    await here.mirror.fetch("org/m", "v1", [one])
    await here.mirror.fetch("org/m", "v2", [two])
    await until(lambda: len(hub.requests) == 1)
    opened.set()
    for version in ("v1", "v2"):
        assert (await here.settled("org/m", version)).state is WeightsState.PRESENT
    assert len(hub.requests) == 1
    assert here.blobs() == [SHA]
    # And long after, too.
    assert (
        await here.fetch(Source("x", hub.put("/rev3/w", BIG), SHA), version="v3")
    ).state is WeightsState.PRESENT
    assert len(hub.requests) == 1


async def test_another_address_of_the_content_is_tried_when_the_first_fails(
    hub: Upstream, here: World
) -> None:
    opened = asyncio.Event()
    hub.acts.append(scripted.gate(opened, scripted.status(404)))
    await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/gone", BIG), SHA)])
    await here.mirror.fetch("org/m", "v2", [Source("w", hub.put("/here", BIG), SHA)])
    opened.set()
    assert (await here.settled("org/m", "v1")).state is WeightsState.FAILED
    assert (await here.settled("org/m", "v2")).state is WeightsState.PRESENT


async def test_a_size_that_contradicts_content_already_here_is_told(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    file = (await here.fetch(Source("w", hub.url("/w"), SHA, 5), version="v2")).files[0]
    assert file.state is WeightsState.FAILED
    assert file.error is not None
    assert f"got {len(BIG)} bytes, expected 5" in file.error
    assert here.blobs() == [SHA]


async def test_two_mirrors_over_one_store_make_one_transfer(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    opened = asyncio.Event()
    hub.acts.append(scripted.gate(opened))
    shared: dict[str, Any] = {"dsn": migrated_dsn, "lease_ttl_s": 5.0}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        files = [Source("w", hub.put("/w", BIG))]
        await asyncio.gather(one.mirror.fetch("org/m", "v1", files), two.mirror.fetch("org/m", "v1", files))
        await until(lambda: len(hub.requests) == 1)
        opened.set()
        views = [await here.settled() for here in (one, two)]
        assert {view.state for view in views} == {WeightsState.PRESENT}
        assert len(hub.requests) == 1
        assert one.blobs() == [SHA]


async def test_mirrors_with_stores_of_their_own_share_a_database_without_meeting(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    files = [Source("w", hub.put("/w", BIG), SHA)]
    async with world(tmp_path / "a", dsn=migrated_dsn) as one, world(tmp_path / "b", dsn=migrated_dsn) as two:
        await one.mirror.fetch("org/m", "v1", files)
        assert (await one.settled()).state is WeightsState.PRESENT
        assert await two.mirror.version("org/m", "v1") is None
        await two.mirror.fetch("org/m", "v1", files)
        assert (await two.settled()).state is WeightsState.PRESENT
    assert len(hub.requests) == 2


async def test_a_mirror_that_lost_its_lease_neither_harms_nor_publishes(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    """The first stops being heard of in mid-transfer; the second takes over from a copy of its part, and
    the first, when it comes back, finds the work done."""
    opened = asyncio.Event()

    async def half(x: scripted.Exchange) -> None:
        await x.head(200, Content_Length=len(BIG), ETag=x.etag)
        await x.send(BIG[:1_200_000])
        await opened.wait()
        await x.send(BIG[1_200_000:])

    hub.acts.append(half)
    shared: dict[str, Any] = {"dsn": migrated_dsn, "lease_ttl_s": 60.0}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await one.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
        await one.received(1_200_000)
        await until(lambda: sum(part.stat().st_size for part in one.parts()) >= 1_048_576)
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(migrated_dsn)
        await connection.execute("UPDATE weights_leases SET expires_at = clock_timestamp() - interval '1 s'")
        await connection.close()
        # Not asked for there: the version is in the store, so a look at it is enough.
        assert (await two.settled()).state is WeightsState.PRESENT
        assert hub.requests[1].first_byte >= 1_048_576
        opened.set()
        assert (await one.settled()).state is WeightsState.PRESENT
        await until(lambda: not len(one.built.flights))
        assert one.parts() == []
        assert one.blobs() == [SHA]
        assert one.store.blob(SHA).read_bytes() == BIG


async def test_progress_of_the_other_mirror_is_shown(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    shared: dict[str, Any] = {"dsn": migrated_dsn, "lease_ttl_s": 1.0}
    hub.acts.append(scripted.stall(1_200_000))
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await one.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), SHA)])
        await one.received(1_200_000)
        assert await two.mirror.version("org/m", "v1") is not None
        view = await two.received(1_200_000)
        assert view.total_bytes == len(BIG)
        assert len(hub.requests) == 1
