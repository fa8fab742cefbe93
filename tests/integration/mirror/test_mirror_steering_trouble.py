"""Stopping and going on while the disk takes nothing: told as such, and whole or not at all."""

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from llmgw_kit.errors import Unavailable
from llmgw_mirror.core.versions import Source, VersionView

from .scripted import Upstream
from .world import World

PATHS = ("a", "b", "c")


async def three_that_failed(here: World, hub: Upstream) -> None:
    for _ in PATHS:
        hub.acts.append(_refuses)
    await here.fetch(*(Source(path, hub.put(f"/{path}", b"abc")) for path in PATHS))


async def _refuses(x: Any) -> None:
    await x.head(404, Content_Length=0)


def fails_from(call: int, real: Callable[..., None], code: int) -> Callable[..., None]:
    """From the so-manieth call on (1: the first), for good."""
    calls = 0

    def act(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(code, os.strerror(code))
        real(*given)

    return act


def cancelled(view: VersionView | None) -> list[str]:
    assert view is not None
    return [file.source.path for file in view.files if file.cancelled]


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
async def test_a_retry_that_the_disk_refuses_changes_nothing(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch, call: int, code: int
) -> None:
    await three_that_failed(here, hub)
    await here.mirror.cancel("org/m", "v1")
    before = await here.mirror.version("org/m", "v1")
    with monkeypatch.context() as patched:
        patched.setattr(here.store, "resume", fails_from(call, here.store.resume, code))
        with pytest.raises(Unavailable) as told:
            await here.mirror.retry("org/m", "v1")
    assert told.value.code == "disk_trouble"
    assert told.value.text.startswith("nothing is tried")
    assert os.strerror(code) in told.value.text
    assert told.value.next_steps
    assert await here.mirror.version("org/m", "v1") == before
    assert cancelled(before) == list(PATHS)
    assert cancelled(await here.mirror.retry("org/m", "v1")) == []
    assert (await here.settled()).state.value == "present"


@pytest.mark.parametrize("call", [1, 3])
async def test_a_cancel_that_the_disk_refuses_changes_nothing(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    await three_that_failed(here, hub)
    with monkeypatch.context() as patched:
        patched.setattr(here.store, "stop", fails_from(call, here.store.stop, errno.EROFS))
        with pytest.raises(Unavailable) as told:
            await here.mirror.cancel("org/m", "v1")
    assert told.value.text.startswith("nothing is cancelled")
    assert cancelled(await here.mirror.version("org/m", "v1")) == []


async def test_what_a_disk_does_not_take_back_is_told(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It became read-only between two files, and nothing can be put back."""
    await three_that_failed(here, hub)
    with monkeypatch.context() as patched:
        patched.setattr(here.store, "stop", fails_from(3, here.store.stop, errno.EROFS))
        patched.setattr(here.store, "resume", fails_from(1, here.store.resume, errno.EROFS))
        with pytest.raises(Unavailable) as told:
            await here.mirror.cancel("org/m", "v1")
    assert told.value.code == "disk_trouble"
    assert "these files alone are cancelled: a, b;" in told.value.text
    assert cancelled(await here.mirror.version("org/m", "v1")) == ["a", "b"]
    with monkeypatch.context() as patched:
        await here.mirror.cancel("org/m", "v1")
        patched.setattr(here.store, "resume", fails_from(2, here.store.resume, errno.EROFS))
        patched.setattr(here.store, "stop", fails_from(1, here.store.stop, errno.EROFS))
        with pytest.raises(Unavailable) as told:
            await here.mirror.retry("org/m", "v1")
    assert "these files alone are not cancelled any more: a;" in told.value.text
    assert cancelled(await here.mirror.version("org/m", "v1")) == ["b", "c"]
