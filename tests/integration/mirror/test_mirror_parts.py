"""Parts on the disk: who may take over what, and that none is ever without its label."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.owners import Owner, provably_gone, this_process
from llmgw_mirror.adapters.parts import Label, read_label
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.adapters.store import Store, open_store
from llmgw_mirror.core.content_keys import content_key
from llmgw_mirror.core.versions import Source

from .world import content_of, sha256_of

BIG = content_of(2_500_000)
KEY = content_key(Source("w", "http://h/w"))


@pytest.fixture
async def threads() -> AsyncIterator[DiskThreads]:
    made = DiskThreads(2)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def shelf(store: Store, threads: DiskThreads, holder: str) -> Shelf:
    return Shelf(store, threads, holder=holder)


async def left_behind(
    store: Store, threads: DiskThreads, *, released: bool, owner: Owner | None = None
) -> Path:
    """A part of the first two million bytes, by a writer that let go of it or did not."""
    part = await shelf(store, threads, "one").take(KEY, 1)
    await part.begin(validator='"v"', total_bytes=len(BIG))
    await part.append([BIG[:2_000_000]])
    (path,) = store.parts.glob("*.part")
    await part.keep()
    label = read_label(path)
    assert label is not None
    changed = Label(
        label.key, owner or this_process(), label.validator, label.total_bytes, 2_000_000, released
    )
    path.with_suffix(".json").write_bytes(changed.dump())
    return path


async def whole(store: Store, threads: DiskThreads) -> None:
    """Take over, go on, and see that all is right."""
    part = await shelf(store, threads, "three").take(KEY, 3)
    assert (part.seen.length, part.seen.validator, part.seen.total_bytes) == (2_000_000, '"v"', len(BIG))
    await part.prove()
    await part.append([BIG[2_000_000:]])
    assert await part.seal() == sha256_of(BIG)
    await part.discard()


async def test_a_part_that_was_let_go_is_taken_as_it_is(store: Store, threads: DiskThreads) -> None:
    old = await left_behind(store, threads, released=True)
    inode = old.stat().st_ino
    part = await shelf(store, threads, "two").take(KEY, 2)
    (path,) = store.parts.glob("*.part")
    assert path.stat().st_ino == inode
    assert path != old
    await part.keep()
    await whole(store, threads)


async def test_a_part_whose_writer_may_live_is_copied(store: Store, threads: DiskThreads) -> None:
    old = await left_behind(store, threads, released=False)
    writer = old.open("r+b")
    inode = old.stat().st_ino
    part = await shelf(store, threads, "two").take(KEY, 2)
    (path,) = store.parts.glob("*.part")
    assert path.stat().st_ino != inode
    # The old writer wakes up and writes on; the copy does not care.
    writer.write(b"garbage")
    writer.close()
    await part.keep()
    await whole(store, threads)


async def test_after_a_power_cut_only_what_was_synced_counts(store: Store, threads: DiskThreads) -> None:
    other_boot = Owner("another boot", "pid:[1]", 1, "1")
    path = await left_behind(store, threads, released=True, owner=other_boot)
    with path.open("ab") as file:
        file.write(bytes(100_000))  # a length the file system kept, over blocks it did not
    await whole(store, threads)


def test_who_is_provably_gone() -> None:
    me = this_process()
    assert not provably_gone(me)
    assert not provably_gone(None)
    assert provably_gone(Owner(me.boot_id, me.pid_namespace, me.pid, "1"))
    assert provably_gone(Owner(me.boot_id, me.pid_namespace, 2**22 + 1, me.started_ticks))
    # Another container or another machine cannot be looked into.
    assert not provably_gone(Owner(me.boot_id, "pid:[1]", me.pid, "1"))
    assert not provably_gone(Owner("another boot", me.pid_namespace, me.pid, "1"))
    assert not provably_gone(Owner("", "", 1, ""))


@pytest.mark.parametrize("released", [True, False])
async def test_a_part_is_never_without_its_label(
    store: Store, threads: DiskThreads, monkeypatch: pytest.MonkeyPatch, *, released: bool
) -> None:
    """A pass of another task, or of another mirror, collects parts without one."""
    await left_behind(store, threads, released=released)
    looks = 0

    def watched(real: Any) -> Any:
        def act(*args: Any, **keys: Any) -> Any:
            nonlocal looks
            looks += 1
            assert all(read_label(path) is not None for path in store.parts.glob("*.part"))
            result = real(*args, **keys)
            assert all(read_label(path) is not None for path in store.parts.glob("*.part"))
            return result

        return act

    for name in ("link", "truncate", "unlink", "replace", "fsync"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    part = await shelf(store, threads, "two").take(KEY, 2)
    monkeypatch.undo()
    assert looks >= 4
    await part.discard()
