"""What is on its way, listed and watched; a controller's view, over the real gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from llmgw.v1 import mirror_pb2
from llmgw_kit.errors import NotFound
from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.testing.processes import Cage
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.downloads import Download

from . import scripted
from .scripted import Upstream
from .test_mirror_process import start
from .world import World, content_of, sha256_of, until, world

BIG = content_of(3_000_000)
SHA = sha256_of(BIG)
SMALL = content_of(5_000, seed=9)


async def next_of(watching: AsyncIterator[list[Download]], clock: FakeClock) -> list[Download]:
    """The next message, with as much time as it takes."""
    waiting = asyncio.ensure_future(anext(watching))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        while not waiting.done():
            await asyncio.sleep(0.002)
            await clock.advance(0.25)
    return await waiting


async def test_sums_are_the_whole_versions_and_files_those_that_are_missing(
    hub: Upstream, here: World
) -> None:
    hub.acts_on["/w"] = scripted.stall(1_200_000)
    await here.fetch(Source("x", hub.put("/x", SMALL)), version="whole")
    await here.mirror.fetch(
        "org/m", "v1", [Source("w", hub.put("/w", BIG), SHA, len(BIG)), Source("s", hub.put("/s", SMALL))]
    )
    await here.received(1_200_000)
    await until(lambda: len(here.built.flights) == 1)
    (one,) = await here.built.downloads.now()
    assert [file.source.path for file in one.files] == ["w"]
    assert (one.whole.received_bytes, one.whole.total_bytes) == (1_205_000, 3_005_000)


async def test_one_unknown_size_leaves_the_whole_unknown(hub: Upstream, here: World) -> None:
    """Honest: no share of a sum that nobody knows."""
    opened = asyncio.Event()
    hub.acts_on["/w"] = scripted.gate(opened)
    await here.mirror.fetch(
        "org/m", "v1", [Source("w", hub.put("/w", BIG)), Source("s", hub.put("/s", SMALL))]
    )
    await here.received(0)
    (one,) = await here.built.downloads.now()
    assert (one.whole.total_bytes, one.whole.eta_s) == (None, None)
    opened.set()
    await here.settled()
    assert await here.built.downloads.now() == []


async def test_who_watches_is_told_changes_soon_and_otherwise_every_few_seconds(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    opened = asyncio.Event()
    hub.acts_on["/w"] = scripted.gate(opened)
    async with world(tmp_path / "store", clock=fake_clock) as here:
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), SHA)])
        await until(lambda: len(hub.requests) == 1)
        watching = here.built.downloads.watch("org/m", "v1")
        (first,) = await next_of(watching, fake_clock)
        assert first.whole.state is WeightsState.FETCHING
        await next_of(watching, fake_clock)  # its rate is known now: none
        began = fake_clock.monotonic_s()
        await next_of(watching, fake_clock)
        assert 3 <= fake_clock.monotonic_s() - began <= 6
        opened.set()
        await until(lambda: here.blobs() == [SHA] and not len(here.built.flights))
        began = fake_clock.monotonic_s()
        while True:
            (last,) = await next_of(watching, fake_clock)
            if last.whole.state is WeightsState.PRESENT:
                break
        # Its end is seen: the file, whole.
        assert fake_clock.monotonic_s() - began <= 3
        assert last.files[0].sha256 == SHA
        await asyncio.to_thread(here.store.remove, version_id("org/m", "v1"))
        with pytest.raises(NotFound, match="'v1' of 'org/m' is not known"):
            for _ in range(5):
                await next_of(watching, fake_clock)


async def test_an_unknown_version_is_told_at_once(here: World) -> None:
    with pytest.raises(NotFound, match="'v9' of 'org/m' is not known"):
        await anext(here.built.downloads.watch("org/m", "v9"))


async def test_many_who_watch_cost_one_look(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("s", hub.put("/s", SMALL)))
    looks = 0
    real = here.built.flights.load_all

    async def counted() -> object:
        nonlocal looks
        looks += 1
        return await real()

    monkeypatch.setattr(here.built.flights, "load_all", counted)
    downloads = here.built.downloads
    await downloads._look(fresh=True)
    await asyncio.gather(*(downloads._look(fresh=False) for _ in range(200)))
    assert looks == 1


async def test_cancelled_and_retried_over_the_wire(hub: Upstream, cage: Cage, tmp_path: Path) -> None:
    hub.acts_on["/w"] = scripted.stall(1_200_000)
    hub.put("/w", BIG)
    running = await start(cage, tmp_path, fetch_rate_bytes_s=10**9)
    async with running.stub() as stub:
        watching = stub.WatchDownloads(
            mirror_pb2.WatchDownloadsRequest(model="org/m", version="v1"), timeout=30
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await watching.read()
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        request = mirror_pb2.FetchRequest(model="org/m", version="v1", asked_by="ann")
        request.files.add(path="w", url=hub.url("/w"), sha256=SHA, size_bytes=len(BIG))
        await stub.Fetch(request, timeout=10)
        await running.settled(at_least=1_200_000)
        listed = await stub.ListDownloads(mirror_pb2.ListDownloadsRequest(), timeout=10)
        assert (listed.cap_bytes_s, listed.HasField("cap_until_unix_s")) == (10**9, False)
        cancel = mirror_pb2.CancelFetchRequest(model="org/m", version="v1", asked_by="ann")
        cancelled = (await stub.CancelFetch(cancel, timeout=10)).version
        assert (cancelled.state, cancelled.files[0].cancelled) == (mirror_pb2.WEIGHTS_STATE_FAILED, True)
        # As a controller does, for as long as a replica waits.
        again = (await stub.Fetch(request, timeout=10)).version
        assert again.files[0].error.startswith("cancelled by ann at ")
        status, said = await running.settled()
        assert (status, said["state"]) == (502, "failed")
        assert "cancelled by ann" in said["error"]
        await stub.RetryFetch(mirror_pb2.RetryFetchRequest(model="org/m", version="v1"), timeout=10)
        async for told in stub.WatchDownloads(
            mirror_pb2.WatchDownloadsRequest(model="org/m", version="v1"), timeout=30
        ):
            if told.versions[0].state == mirror_pb2.WEIGHTS_STATE_PRESENT:
                break
        assert told.versions[0].files[0].sha256 == SHA
    status, metrics = await running.get("/metrics", running.admin)
    assert b"llmgw_mirror_fetch_cap_bytes_per_second 1e+09" in metrics
