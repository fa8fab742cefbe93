"""Removals that meet: another mirror's, a reader that comes late, a disk or database that fails half way."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import Conflict, NotFound, Unavailable
from llmgw_mirror.adapters import removals as removals_module
from llmgw_mirror.adapters.removals import Removal, Removals
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.publishing import PUBLISHING
from llmgw_mirror.removing import Removed

from . import scripted
from .scripted import Upstream
from .slow_reader import reading
from .world import World, content_of, listening, sha256_of, world

BIG = content_of(2_500_000)
SHA = sha256_of(BIG)
HUGE = content_of(24_000_000, seed=4)
FILE = "/v1/weights/org%2Fm/v1/files/w"


async def remove(here: World, **how: bool) -> Removed:
    return await here.built.keepers.keeping.removing.remove("org/m", "v1", asked_by="ada", **how)


async def told(here: World, kind: Kind) -> list[Entry]:
    entries = await here.built.history.newest(model="org/m", version=None, since=None, limit=100)
    return [entry for entry in entries if entry.kind is kind]


@asynccontextmanager
async def nobody_publishes(third: World) -> AsyncIterator[None]:
    """Whoever removes has looked at all there is, and waits for the lease."""
    lease = await third.built.ledger.acquire(PUBLISHING, ttl_s=60)
    assert lease is not None
    yield
    await asyncio.sleep(0.5)
    await third.built.ledger.release(lease)


async def test_of_two_mirrors_asked_at_once_one_removes(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    shared: dict[str, Any] = {"dsn": migrated_dsn}
    root = tmp_path / "store"
    async with world(root, **shared) as one, world(root, **shared) as two, world(root, **shared) as third:
        await one.fetch(Source("w", hub.put("/w", BIG), SHA))
        async with nobody_publishes(third):
            both = [asyncio.create_task(remove(mirror)) for mirror in (one, two)]
        answers = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == [NotFound.__name__, Removed.__name__]
        assert len(await told(one, Kind.REMOVED)) == 1
        (kept,) = await two.built.keepers.keeping.removing.removed()
        assert kept.bytes == len(BIG)


async def test_who_began_to_read_while_the_removal_waited_is_seen(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    shared: dict[str, Any] = {"dsn": migrated_dsn}
    async with world(tmp_path / "s", **shared) as here, world(tmp_path / "s", **shared) as third:
        await here.fetch(Source("w", hub.put("/w", HUGE)))
        async with listening(here) as at, AsyncExitStack() as stack:
            async with nobody_publishes(third):
                removing = asyncio.create_task(remove(here))
                # It has looked at everything before this node comes.
                await asyncio.sleep(0.5)
                node = await stack.enter_async_context(reading(at, FILE))
            with pytest.raises(Conflict, match="is being read by"):
                await removing
            assert await node.rest() == HUGE
        assert (await here.settled()).state is WeightsState.PRESENT


async def test_one_that_is_removed_stays_so_when_its_bytes_cannot_be_freed_now(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would say that nothing has changed."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))

    def failing(self: Removals, removed: Removal) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Removals, "forget", failing)
        answer = await remove(here, now=True)
    assert (answer.freed_bytes, answer.restorable_until) == (0, None)
    assert await here.mirror.version("org/m", "v1") is None
    (line,) = await told(here, Kind.REMOVED)
    assert line.text.startswith("its bytes are freed by a later pass: nothing is purged")
    await here.built.upkeep.tidy()
    assert here.blobs() == []


async def test_fetches_that_a_failed_removal_ended_go_on(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.acts.append(scripted.stall(1_500_000))
    await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
    await here.received(1_500_000)

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(removals_module, "write_atomically", full)
        with pytest.raises(Unavailable, match="nothing is removed"):
            await remove(here, force=True)
    assert len(here.built.flights) == 1
    assert (await here.settled()).state is WeightsState.PRESENT
