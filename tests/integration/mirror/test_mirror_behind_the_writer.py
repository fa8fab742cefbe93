"""What is written is synced beside the writing, leaves the page cache, and is doubted when a sync fails."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw_mirror.adapters import parts
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.parts import Part, read_label
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.adapters.store import open_store
from llmgw_mirror.core.content_keys import content_key
from llmgw_mirror.core.versions import Source

from .world import content_of, sha256_of

KEY = content_key(Source("w", "http://h/w"))
BIG = content_of(3_000_000)
EVERY = 1_000_000


@pytest.fixture
async def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shelf]:
    monkeypatch.setattr(parts, "SYNC_EVERY_BYTES", EVERY)
    threads = DiskThreads(3)
    yield Shelf(open_store(tmp_path / "store"), threads, holder="one")
    threads.close()


async def written(shelf: Shelf, token: int = 1) -> Part:
    """All of it, in lots of 500,000 bytes."""
    part = await shelf.take(KEY, token)
    await part.begin(validator='"v"', total_bytes=len(BIG))
    for at in range(0, len(BIG), 500_000):
        await part.append([BIG[at : at + 500_000]])
    return part


async def test_what_is_synced_leaves_the_page_cache(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int, int]] = []
    real = os.posix_fadvise

    def advise(fd: int, start: int, count: int, advice: int) -> None:
        told.append((start, count, advice))
        real(fd, start, count, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    part = await written(shelf)
    assert await part.seal() == sha256_of(BIG)
    assert [(start, start + count) for start, count, _ in told] == [
        (0, 1_000_000),
        (1_000_000, 2_000_000),
        (2_000_000, 3_000_000),
    ]
    assert {advice for *_, advice in told} == {os.POSIX_FADV_DONTNEED}
    await part.discard()


async def test_the_label_never_says_more_than_was_synced(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = os.fsync, []

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith(".part"):
            # From here on bytes may come that this sync does not cover.
            seen.append(os.fstat(fd).st_size)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    part = await written(shelf)
    await part.keep()
    (path,) = shelf.store.parts.glob("*.part")
    label = read_label(path)
    assert label is not None
    assert label.synced_bytes == len(BIG) == seen[-1]
    assert len(seen) == 4


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_after_a_failed_sync_only_what_was_synced_before_is_trusted(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The system may have dropped what it could not write, and a second sync would say that all is well."""
    real, syncs = os.fsync, 0

    def fails_once(fd: int) -> None:
        nonlocal syncs
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".part"):
            syncs += 1
            if syncs == 2:
                raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fails_once)
    part = await shelf.take(KEY, 1)
    await part.begin(validator='"v"', total_bytes=len(BIG))
    with pytest.raises(OSError, match=os.strerror(code)):
        for at in range(0, len(BIG), 500_000):
            await part.append([BIG[at : at + 500_000]])
    await part.keep()
    again = await shelf.take(KEY, 2)
    assert again.length == 1_000_000
    await again.prove()
    await again.append([BIG[1_000_000:]])
    assert await again.seal() == sha256_of(BIG)
    await again.discard()
