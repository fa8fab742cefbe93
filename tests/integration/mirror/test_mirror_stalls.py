"""Silence is upstream's only for as long as nobody here keeps it waiting (H13, H14)."""

import asyncio
from pathlib import Path

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.core.versions import Source, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, until, world

BIG = content_of(3_000_000)
WINDOW_S = 30


def room_takes(
    here: World, monkeypatch: pytest.MonkeyPatch, clock: FakeClock, seconds: float
) -> asyncio.Event:
    """The disk is full until room was made, for so long. The event: it has begun."""
    full, begun = True, asyncio.Event()

    async def relieve(lacking: int) -> int:
        nonlocal full
        begun.set()
        await clock.sleep(seconds)
        full = False
        return lacking

    monkeypatch.setattr(here.built.flights._fetcher._room, "relieve", relieve)
    monkeypatch.setattr(here.store, "disk", lambda: (10**9, 10 if full else 10**8))
    return begun


async def test_h14_making_room_ourselves_is_no_stall_of_upstream(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "store", clock=fake_clock, stall_window_s=WINDOW_S, attempts=1) as here:
        begun = room_takes(here, monkeypatch, fake_clock, 10 * WINDOW_S)
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
        await asyncio.wait_for(begun.wait(), 30)
        for _ in range(11):
            await fake_clock.advance(WINDOW_S)
        assert (await here.settled()).state is WeightsState.PRESENT
        assert len(hub.requests) == 1


async def test_h14_after_we_held_it_up_upstream_has_its_whole_window(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is there a second before the window ends; upstream's next bytes come ten seconds later."""
    more = asyncio.Event()

    async def late(x: scripted.Exchange) -> None:
        await x.head(200, Content_Length=len(BIG), ETag=x.etag)
        await more.wait()
        await x.send(BIG)

    hub.acts.append(late)
    async with world(tmp_path / "store", clock=fake_clock, stall_window_s=WINDOW_S, attempts=1) as here:
        begun = room_takes(here, monkeypatch, fake_clock, WINDOW_S - 1)
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
        await asyncio.wait_for(begun.wait(), 30)
        await fake_clock.advance(WINDOW_S - 1)
        # The part is begun once its label is written.
        await until(lambda: len(here.parts()) == 1 and hub.asked("/w") == 1)
        await fake_clock.advance(10)
        more.set()
        assert (await here.settled()).state is WeightsState.PRESENT
        assert len(hub.requests) == 1


async def test_h13_after_that_silence_is_a_stall(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.acts.append(scripted.stall(0))
    async with world(tmp_path / "store", clock=fake_clock, stall_window_s=WINDOW_S, attempts=1) as here:
        begun = room_takes(here, monkeypatch, fake_clock, WINDOW_S - 1)
        await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
        await asyncio.wait_for(begun.wait(), 30)
        await fake_clock.advance(WINDOW_S - 1)
        await asyncio.sleep(0.1)
        for _ in range(3):
            await fake_clock.advance(WINDOW_S)
        (file,) = (await here.settled()).files
        assert "upstream stalled: 0 bytes in 30 s" in (file.error or "")
