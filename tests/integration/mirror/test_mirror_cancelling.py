"""Fetches that somebody stops and goes on with: here, at another mirror, over a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import InvalidRequest, NotFound, Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Source, VersionView, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, sha256_of, until, world

BIG = content_of(2_500_000)
SHA = sha256_of(BIG)
SMALL = content_of(5_000, seed=9)


async def under_way(hub: Upstream, here: World, **kept: object) -> list[Source]:
    """Two files asked for: one here, one stopped in mid-transfer with 1,200,000 bytes."""
    hub.acts_on["/w"] = scripted.stall(1_200_000)
    files = [Source("w", hub.put("/w", BIG), SHA), Source("s", hub.put("/s", SMALL))]
    await here.mirror.fetch("org/m", "v1", files)
    await here.received(1_200_000)
    await until(lambda: len(here.built.flights) == 1)
    return files


def states(view: VersionView) -> dict[str, tuple[str, bool]]:
    return {file.source.path: (file.state.value, file.cancelled) for file in view.files}


async def kinds(here: World) -> list[tuple[Kind, str | None]]:
    newest = await here.built.history.newest(model=None, version=None, since=None, limit=50)
    return [(entry.kind, entry.asked_by) for entry in newest]


async def test_a_cancelled_file_stops_and_what_came_stays(hub: Upstream, here: World) -> None:
    files = await under_way(hub, here)
    view, freed = await here.mirror.cancel("org/m", "v1", asked_by="ann")
    assert states(view) == {"w": ("failed", True), "s": ("present", False)}
    (told,) = [file.error for file in view.files if file.error]
    assert told.startswith("cancelled by ann at 20")
    assert "; 1200000 bytes are kept" in told
    assert freed == 0
    assert len(here.built.flights) == 0
    assert [part.stat().st_size for part in here.parts()] == [1_200_000]
    # A controller's repeated Fetch, a node's question and the upkeep's pass do not bring it back.
    for _ in range(3):
        assert states(await here.mirror.fetch("org/m", "v1", files))["w"] == ("failed", True)
        await here.built.upkeep.look()
        await here.built.upkeep.collect_parts()
        assert (await here.settled()).state is WeightsState.FAILED
    assert hub.asked("/w") == 1
    assert [part.stat().st_size for part in here.parts()] == [1_200_000]


async def test_a_retry_goes_on_where_it_was(hub: Upstream, here: World) -> None:
    await under_way(hub, here)
    await here.mirror.cancel("org/m", "v1", ["w"], asked_by="ann")
    view = await here.mirror.retry("org/m", "v1", ["w"], asked_by="bob")
    assert states(view)["w"] == ("fetching", False)
    assert (await here.settled()).state is WeightsState.PRESENT
    assert [r.first_byte for r in hub.requests if r.path == "/w"] == [0, 1_200_000]
    assert (Kind.RETRIED, "bob") in await kinds(here)
    assert (Kind.CANCELLED, "ann") in await kinds(here)


async def test_a_fetch_without_files_goes_on_too(hub: Upstream, here: World) -> None:
    await under_way(hub, here)
    await here.mirror.cancel("org/m", "v1")
    await here.mirror.fetch("org/m", "v1", [])
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_twice_is_once_and_the_first_word_stands(hub: Upstream, here: World) -> None:
    await under_way(hub, here)
    first, _ = await here.mirror.cancel("org/m", "v1", asked_by="ann")
    second, _ = await here.mirror.cancel("org/m", "v1", asked_by="bob")
    assert first.files == second.files
    assert [kind for kind, _ in await kinds(here)].count(Kind.CANCELLED) == 1


async def test_discarding_frees_what_came(hub: Upstream, here: World) -> None:
    await under_way(hub, here)
    await here.mirror.cancel("org/m", "v1", asked_by="ann")
    view, freed = await here.mirror.cancel("org/m", "v1", discard=True)
    assert freed == 1_200_000
    assert here.parts() == []
    assert states(view)["w"] == ("failed", True)
    assert all("kept" not in (file.error or "") for file in view.files)
    await here.mirror.retry("org/m", "v1")
    assert (await here.settled()).state is WeightsState.PRESENT
    assert [r.first_byte for r in hub.requests if r.path == "/w"] == [0, 0]


async def test_what_another_version_still_fetches_is_neither_stopped_nor_dropped(
    hub: Upstream, here: World
) -> None:
    await under_way(hub, here)
    await here.mirror.fetch("org/m", "v2", [Source("w", hub.url("/w"), SHA)])
    _, freed = await here.mirror.cancel("org/m", "v1", discard=True)
    assert freed == 0
    assert (await here.settled("org/m", "v2")).state is WeightsState.PRESENT
    # The flight of v2 took over what had come.
    assert [r.first_byte for r in hub.requests if r.path == "/w"] == [0, 1_200_000]
    view = await here.mirror.version("org/m", "v1")
    assert view is not None
    assert states(view)["w"] == ("failed", True)


async def test_it_outlives_a_restart(hub: Upstream, tmp_path: Path) -> None:
    async with world(tmp_path / "store") as before:
        await under_way(hub, before)
        await before.mirror.cancel("org/m", "v1", asked_by="ann")
    async with world(tmp_path / "store") as after:
        await after.built.upkeep.look()
        view = await after.mirror.version("org/m", "v1")
        assert view is not None
        assert states(view)["w"] == ("failed", True)
        assert hub.asked("/w") == 1
        await after.mirror.retry("org/m", "v1")
        assert (await after.settled()).state is WeightsState.PRESENT
    assert [r.first_byte for r in hub.requests if r.path == "/w"] == [0, 1_200_000]


async def test_a_failed_file_can_be_stopped_and_is_tried_again_by_name(hub: Upstream, here: World) -> None:
    hub.acts_on["/w"] = scripted.status(404)
    hub.acts_on["/s"] = scripted.status(404)
    files = [Source("w", hub.put("/w", BIG)), Source("s", hub.put("/s", SMALL))]
    await here.fetch(*files)
    await here.mirror.cancel("org/m", "v1", ["w"])
    await here.mirror.fetch("org/m", "v1", files)
    view = await here.settled()
    assert states(view) == {"w": ("failed", True), "s": ("present", False)}
    assert hub.asked("/w") == 1
    await here.mirror.retry("org/m", "v1", ["w"])
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_only_the_named_files_are_retried(hub: Upstream, here: World) -> None:
    hub.acts_on["/w"] = scripted.status(404)
    hub.acts_on["/s"] = scripted.status(404)
    await here.fetch(Source("w", hub.put("/w", BIG)), Source("s", hub.put("/s", SMALL)))
    await here.mirror.retry("org/m", "v1", ["s"])
    assert states(await here.settled()) == {"w": ("failed", False), "s": ("present", False)}
    assert (hub.asked("/w"), hub.asked("/s")) == (1, 2)
    # What is here already is left alone.
    await here.mirror.retry("org/m", "v1", ["s"])
    assert hub.asked("/s") == 2


async def test_an_unknown_name_changes_nothing(hub: Upstream, here: World) -> None:
    await under_way(hub, here)
    for act in (here.mirror.cancel, here.mirror.retry):
        with pytest.raises(InvalidRequest, match="has no file 'x', nor 1 more of those named"):
            await act("org/m", "v1", ["w", "x", "y"])
        with pytest.raises(NotFound, match="'v9' of 'org/m' is not known"):
            await act("org/m", "v9")
    view = await here.mirror.version("org/m", "v1")
    assert view is not None
    assert states(view)["w"] == ("fetching", False)


async def test_a_disk_that_takes_no_mark_leaves_everything_as_it_was(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.acts_on["/w"] = scripted.stall(1_200_000)
    hub.acts_on["/s"] = scripted.stall(100)
    await here.mirror.fetch(
        "org/m", "v1", [Source("s", hub.put("/s", SMALL)), Source("w", hub.put("/w", BIG), SHA)]
    )
    await here.received(1_200_100)
    real = here.store.stop

    def full_at_the_second(vid: str, path: str, word: Any) -> None:
        if path == "w":
            raise OSError(28, "No space left on device")
        real(vid, path, word)

    monkeypatch.setattr(here.store, "stop", full_at_the_second)
    with pytest.raises(Unavailable, match="nothing is cancelled"):
        await here.mirror.cancel("org/m", "v1")
    view = await here.mirror.version("org/m", "v1")
    assert view is not None
    assert states(view) == {"w": ("fetching", False), "s": ("fetching", False)}


async def test_a_stale_look_does_not_start_it_again(hub: Upstream, here: World) -> None:
    """A node asked just before; what was read for it then says that the file is to be fetched."""
    await under_way(hub, here)
    vid = version_id("org/m", "v1")
    stale = await here.built.flights.load(vid)
    assert stale is not None
    await here.mirror.cancel("org/m", "v1")
    await here.built.flights.start_missing(vid, stale)
    await until(lambda: len(here.built.flights) == 0)
    assert hub.asked("/w") == 1


async def test_it_reaches_the_mirror_that_fetches(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, fake_clock: FakeClock
) -> None:
    """Said at one of two mirrors over a store, done at both: the word is on the disk."""
    shared: dict[str, Any] = {"dsn": migrated_dsn}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await under_way(hub, one)
        await two.mirror.cancel("org/m", "v1", discard=True, asked_by="ann")
        assert one.parts()
        await one.built.upkeep.look()
        assert len(one.built.flights) == 0
        # The lease is free now, so whoever passes first drops what came.
        await two.built.upkeep.collect_parts()
        assert two.parts() == []
        for here in (one, two):
            await here.built.upkeep.look()
            view = await here.mirror.version("org/m", "v1")
            assert view is not None
            assert states(view)["w"] == ("failed", True)
        await one.mirror.retry("org/m", "v1")
        assert (await two.settled()).state is WeightsState.PRESENT
        assert hub.asked("/w") == 2


async def test_one_that_lands_in_the_moment_of_the_word_is_here(hub: Upstream, here: World) -> None:
    """Whichever comes first, the version ends in one state and nothing is left over."""
    for number in range(10):
        content, version = content_of(300_000, seed=number), f"r{number}"
        await here.mirror.fetch("org/m", version, [Source("w", hub.put(f"/{number}", content))])
        await asyncio.sleep(0.003 * number)
        await here.mirror.cancel("org/m", version)
        view = await here.settled("org/m", version)
        if view.files[0].cancelled:
            await here.mirror.retry("org/m", version)
            view = await here.settled("org/m", version)
        assert view.state is WeightsState.PRESENT
        assert view.files[0].sha256 == sha256_of(content)
    await until(lambda: not here.parts())
