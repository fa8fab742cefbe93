"""A disk that is full to the last byte is freed by the mirror's own advice."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import Unavailable
from llmgw_mirror.core.versions import Source, VersionView, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, sha256_of, until

BIG = content_of(3_000_000)


class FullDisk(AbstractContextManager[None]):
    """While it is entered, no byte can be written while `full` says so; names can be moved and removed, as
    on a real full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: Callable[[], bool] = lambda: True) -> None:
        self._patched = monkeypatch.context()
        self._full = full

    def __enter__(self) -> None:
        patched = self._patched.__enter__()
        for name in ("write", "pwrite"):
            patched.setattr(os, name, self._refusing(getattr(os, name)))

    def __exit__(self, *ended: object) -> None:
        self._patched.__exit__(None, None, None)

    def _refusing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any) -> Any:
            if self._full():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*given)

        return act


async def the_view(here: World) -> VersionView:
    view = await here.mirror.version("org/m", "v1")
    assert view is not None
    return view


async def half_here(hub: Upstream, here: World) -> None:
    """The only file has come halfway, and failed."""
    hub.acts_on["/w"] = scripted.stall(1_200_000)
    await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG), sha256_of(BIG))])
    await here.received(1_200_000)
    # What is still in memory cannot be written any more once the disk is full.
    await until(lambda: sum(path.stat().st_size for path in here.parts()) >= 1 << 20)


async def test_removing_at_once_needs_no_room(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG)))
    with FullDisk(monkeypatch):
        with pytest.raises(Unavailable, match="nothing is removed: the disk says No space left") as refused:
            await here.built.keepers.keeping.removing.remove("org/m", "v1")
        assert any("--now" in step for step in refused.value.next_steps)
        assert (await the_view(here)).state is WeightsState.PRESENT
        assert await here.removed() == len(BIG)
    assert here.blobs() == []
    assert list((here.store.root / "removed").iterdir()) == []
    assert await here.mirror.version("org/m", "v1") is None


async def test_a_removal_for_good_that_was_broken_off_is_finished_by_a_pass(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no way back, so that nothing says what it was; its content goes all the same."""
    await here.fetch(Source("w", hub.put("/w", BIG)))

    async def dies(*_: object, **__: object) -> int:
        raise Unavailable("Postgres does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(here.built.upkeep._garbage, "purge", dies)
        await here.removed()
    assert await here.built.keepers.keeping.removing.removed() == []
    await here.built.upkeep.tidy()
    assert (here.blobs(), list((here.store.root / "removed").iterdir())) == ([], [])


async def test_dropping_what_came_makes_the_room_to_note_it(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await half_here(hub, here)
    with FullDisk(monkeypatch, lambda: bool(here.parts())):
        with pytest.raises(Unavailable, match="nothing is cancelled") as refused:
            await here.mirror.cancel("org/m", "v1")
        assert any("--discard" in step for step in refused.value.next_steps)
        view, freed = await here.mirror.cancel("org/m", "v1", discard=True)
    assert freed > 1_000_000
    assert here.parts() == []
    assert view.files[0].cancelled


async def test_what_is_dropped_is_freed_also_where_it_cannot_be_noted(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await half_here(hub, here)
    with (
        FullDisk(monkeypatch),
        pytest.raises(Unavailable, match=r"nothing is cancelled; .* \d{7} bytes .* are freed all the same"),
    ):
        await here.mirror.cancel("org/m", "v1", discard=True)
    assert here.parts() == []


async def test_what_another_version_waits_for_is_not_dropped(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await half_here(hub, here)
    await here.mirror.fetch("org/m", "v2", [Source("w", hub.url("/w"), sha256_of(BIG))])
    with FullDisk(monkeypatch), pytest.raises(Unavailable, match="nothing is cancelled"):
        await here.mirror.cancel("org/m", "v1", discard=True)
    assert len(here.parts()) == 1


async def test_a_retry_on_a_full_disk_says_that_it_is_full(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.acts_on["/w"] = scripted.status(404)
    await here.fetch(Source("w", hub.url("/w")))
    hub.acts_on.clear()
    hub.put("/w", BIG)
    with FullDisk(monkeypatch):
        await here.mirror.retry("org/m", "v1")
        await until(lambda: not len(here.built.flights))
        error = (await the_view(here)).files[0].error
        assert error is not None
        assert "the disk is full (No space left on device)" in error
    await here.mirror.retry("org/m", "v1")
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_content_that_is_here_already_says_so_too(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG)))
    hub.acts_on["/x"] = scripted.status(404)
    await here.fetch(Source("w", hub.url("/x"), sha256_of(content_of(100, 9))), version="v2")
    # Meanwhile it came with another version.
    await here.fetch(Source("w", hub.put("/y", content_of(100, 9))), version="v3")
    with FullDisk(monkeypatch):
        await here.mirror.retry("org/m", "v2")
        await until(lambda: not len(here.built.flights))
        view = await here.mirror.version("org/m", "v2")
        assert view is not None
        assert "the disk is full" in (view.files[0].error or "")
