"""`disk_reserve_bytes` stays free, whether or not upstream says how much comes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw_mirror.core.versions import Source, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, sha256_of, world

MB = 1 << 20
TOTAL, RESERVE = 1_000 * MB, 20 * MB


class Disk:
    """Shrinks as parts grow."""

    def __init__(self, here: World, free: int) -> None:
        self.here, self.free = here, free

    def __call__(self) -> tuple[int, int]:
        return TOTAL, self.free - self.used()

    def used(self) -> int:
        return sum(path.stat().st_size for path in self.here.parts())


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path / "store", disk_reserve_bytes=RESERVE) as made:
        yield made


@pytest.mark.parametrize("room", [31 * MB, 33 * MB, 40 * MB])
async def test_a_body_without_length_stops_before_the_reserve(
    hub: Upstream, tight: World, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk = Disk(tight, RESERVE + room)
    monkeypatch.setattr(tight.store, "disk", disk)
    hub.files["/w"] = bytes(50 * MB)
    hub.acts_on["/w"] = scripted.endless
    view = await tight.fetch(Source("w", hub.url("/w"), "a" * 64))
    assert view.state is WeightsState.FAILED
    assert "the disk has no room" in (view.files[0].error or "")
    assert disk()[1] >= RESERVE
    assert disk.used() > 10 * MB, "it was not given up long before"


async def test_two_without_length_do_not_share_the_same_room(
    hub: Upstream, tight: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tight, RESERVE + 40 * MB)
    monkeypatch.setattr(tight.store, "disk", disk)
    files = []
    for name in ("w", "x"):
        hub.files[f"/{name}"] = bytes(50 * MB)
        hub.acts_on[f"/{name}"] = scripted.endless
        files.append(Source(name, hub.url(f"/{name}"), sha256_of(name.encode())))
    view = await tight.fetch(*files)
    assert ["the disk has no room" in (file.error or "") for file in view.files] == [True, True]
    assert disk()[1] >= RESERVE


async def test_a_small_one_without_length_needs_little_room(
    hub: Upstream, tight: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tight.store, "disk", Disk(tight, RESERVE + 2 * MB))
    hub.files["/c"] = content_of(900)
    hub.acts_on["/c"] = scripted.chunked()
    assert (await tight.fetch(Source("c", hub.url("/c")))).state is WeightsState.PRESENT


async def test_with_room_enough_it_comes_whole(hub: Upstream, tight: World) -> None:
    hub.files["/c"] = content_of(9 * MB)
    hub.acts_on["/c"] = scripted.chunked()
    assert (await tight.fetch(Source("c", hub.url("/c")))).state is WeightsState.PRESENT
