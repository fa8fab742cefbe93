"""How the mirror behaves towards upstreams: caps, schedules, one origin's bound, limits told in advance."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.settings import MirrorSettings

from . import scripted
from .scripted import Upstream, upstream
from .world import PATIENCE_S, content_of, sha256_of, until, world

BIG = content_of(3_000_000)
SHA = sha256_of(BIG)
MB = 10**6


async def sockets_had_their_turn() -> None:
    """For what must not happen: a request that is made would have arrived by now."""
    for _ in range(50):
        await asyncio.sleep(0.002)


async def test_a_cap_counts_for_all_files_together(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """Two files of 3 MB at 1 MB a second take 6 s together, less what the burst gives."""
    async with world(tmp_path / "store", clock=fake_clock, fetch_rate_bytes_s=MB) as here:
        files = [Source(f"f{n}", hub.put(f"/{n}", content_of(3 * MB, seed=n))) for n in range(2)]
        began = fake_clock.monotonic_s()
        await here.mirror.fetch("org/m", "v1", files)
        async with asyncio.timeout(PATIENCE_S):
            while len(here.blobs()) < 2:
                await asyncio.sleep(0.002)
                await fake_clock.advance(0.05)
        assert fake_clock.monotonic_s() - began >= 5.7


async def test_a_capped_fetch_is_not_taken_for_a_stalled_one(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """H14: slow because we are is not slow because upstream is."""
    async with world(
        tmp_path / "store", clock=fake_clock, fetch_rate_bytes_s=10_000, stall_window_s=5, stall_bytes=10**6
    ) as here:
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), SHA)])
        await until(lambda: here.built.tally.received_bytes > 0)
        for _ in range(400):
            await fake_clock.advance(1)
            if here.blobs():
                break
        assert (await here.settled()).state is WeightsState.PRESENT
        assert len(hub.requests) == 1


async def test_the_schedule_pauses_and_goes_on_where_it_was(hub: Upstream, tmp_path: Path) -> None:
    """A transfer under way is let go of when its time is over, and is no attempt that failed."""
    clock = FakeClock(unix_s=datetime(2026, 11, 2, 7, 59, 58, tzinfo=UTC).timestamp())
    more = asyncio.Event()

    async def on_and_on(x: scripted.Exchange) -> None:
        await scripted.cut(1_000_000)(x)
        await more.wait()
        await x.send(BIG[1_000_000:1_500_000])
        await x.upstream.over.wait()

    hub.acts.append(on_and_on)
    async with world(
        tmp_path / "store", clock=clock, attempts=1,
        fetch_schedule="08:00-08:10=pause", fetch_schedule_zone="UTC",
    ) as here:  # fmt: skip
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), SHA)])
        await here.received(1_000_000)
        # Over the end of its time.
        await clock.advance(5)
        more.set()
        # With the first piece that comes; what follows is not read any more.
        await until(lambda: here.built.tally.received_bytes > 1_000_000)
        await clock.advance(500)
        assert len(hub.requests) == 1
        view = await here.mirror.version("org/m", "v1")
        assert view is not None
        assert view.state is WeightsState.FETCHING
        assert 1_000_000 < view.received_bytes <= 1_500_000
        await clock.advance(120)
        assert (await here.settled()).state is WeightsState.PRESENT
        assert [request.first_byte for request in hub.requests] == [0, view.received_bytes]


async def test_file_urls_are_not_capped(tmp_path: Path, fake_clock: FakeClock) -> None:
    """No link is used that others need."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "w").write_bytes(BIG)
    async with world(
        tmp_path / "store", clock=fake_clock, fetch_rate_bytes_s=1, file_roots=(tmp_path / "disk",)
    ) as here:
        file = await here.fetch_one(f"file://{tmp_path}/disk/w", sha256=SHA)
        assert file.state is WeightsState.PRESENT


async def test_h12_a_limit_that_is_used_up_is_obeyed_before_anybody_is_refused(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """A good answer that says r=0;t=60 holds back the next file; the one that got it goes on."""

    async def last_one(x: scripted.Exchange) -> None:
        await x.head(
            200, Content_Length=len(x.content), ETag=x.etag, RateLimit='"resolvers";r=0;t=60, "api";r=9;t=90'
        )
        await x.send(x.content)

    hub.acts.append(last_one)
    async with world(tmp_path / "store", clock=fake_clock, parallel_fetches=1) as here:
        files = [Source("a", hub.put("/a", BIG)), Source("b", hub.put("/b", BIG[:5000]))]
        await here.mirror.fetch("org/m", "v1", files)
        await until(lambda: len(here.blobs()) == 1)
        await fake_clock.advance(58)
        await sockets_had_their_turn()
        assert len(hub.requests) == 1
        await fake_clock.advance(3)
        assert (await here.settled()).state is WeightsState.PRESENT
        assert here.built.tally.requests == {"complete": 2}


async def test_h12_the_limit_may_be_told_by_a_redirect(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    async with upstream() as cdn:
        cdn.put("/blob", BIG)
        hub.acts.append(scripted.status(302, Location=cdn.url("/blob"), RateLimit='"resolvers";t=60;r=0'))
        async with world(tmp_path / "store", clock=fake_clock, parallel_fetches=1) as here:
            files = [Source("a", hub.put("/a", BIG)), Source("b", hub.put("/b", BIG[:5000]))]
            await here.mirror.fetch("org/m", "v1", files)
            await until(lambda: len(here.blobs()) == 1)
            await fake_clock.advance(58)
            await sockets_had_their_turn()
            assert len(hub.requests) == 1
            await fake_clock.advance(3)
            assert (await here.settled()).state is WeightsState.PRESENT


async def test_one_origin_has_a_bound_of_its_own(hub: Upstream, tmp_path: Path) -> None:
    """Four at once, two of them of one origin at most: the other origin is not kept waiting."""
    opened = asyncio.Event()
    hub.acts.extend([scripted.gate(opened)] * 4)
    async with upstream() as other, world(tmp_path / "store", parallel_per_origin=2) as here:
        files = [Source(f"f{n}", hub.put(f"/{n}", content_of(1000, seed=n))) for n in range(4)]
        await here.mirror.fetch("org/m", "v1", files)
        await until(lambda: len(hub.requests) == 2)
        elsewhere = await here.fetch(Source("c", other.put("/c", BIG)), version="x")
        assert elsewhere.state is WeightsState.PRESENT
        assert len(hub.requests) == 2
        opened.set()
        assert (await here.settled()).state is WeightsState.PRESENT


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"fetch_schedule": "*=5MB"}, "set both or not at all"),
        ({"fetch_schedule_zone": "UTC"}, "set both or not at all"),
        ({"fetch_schedule": "*=5MB", "fetch_schedule_zone": "Middle/Earth"}, "no time zone known here"),
        ({"fetch_schedule": "*=5MB", "fetch_schedule_zone": "../etc"}, "no time zone known here"),
        ({"fetch_schedule": "*=0", "fetch_schedule_zone": "UTC"}, "'0' is no cap"),
        ({"fetch_rate_bytes_s": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MirrorSettings.model_validate(given)
