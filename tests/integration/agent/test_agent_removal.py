"""Weights removed while something else happens to them: a start, a prefetch, another removal (case 39)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from llmgw_agent.adapters.fetching import FetchLimits, Weights
from llmgw_agent.adapters.mirror_client import MirrorClient
from llmgw_agent.adapters.weights_store import WeightsStore
from llmgw_agent.core.shard import Shard, ShardState
from llmgw_agent.core.spec import ShardSpec, WeightsRef
from llmgw_agent.core.weights import WeightsKey
from llmgw_agent.loops.prefetch import MOST, WeightsDesk
from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import Conflict, NotFound, Unavailable
from llmgw_kit.ids import ReplicaId, ShardId
from tests.integration.agent.agent_bench import eventually
from tests.integration.agent.mirror_bench import FakeMirror, mirror

KEY = WeightsKey("org/chat", "v1")
FILES = {"model.bin": os.urandom(300_000), "config.json": b"{}"}
BYTES = 300_002


class SlowStore(WeightsStore):
    """Its removals wait until they are let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go = threading.Event()
        self.go.set()

    def remove(self, key: WeightsKey) -> int:
        assert self.go.wait(30)
        return super().remove(key)


class Here:
    """A node's weights, without the rest of an agent."""

    def __init__(self, folder: Path, http: aiohttp.ClientSession, source: FakeMirror) -> None:
        self.store = SlowStore(folder)
        self.weights = Weights(self.store, MirrorClient(http), SystemClock(), FetchLimits(reserve_bytes=0))
        self.shards: dict[ShardId, Shard] = {}
        self.source = source
        self.desk = WeightsDesk(self.weights, lambda: self.shards, lambda: None)

    def shard(self, state: ShardState) -> None:
        """One shard that was started from the version."""
        spec = ShardSpec(
            ShardId("chat/1.1.0"), ReplicaId("chat/1"), 1, "h", "chat", "command",
            weights=WeightsRef(KEY.model, KEY.version),
        )  # fmt: skip
        self.shards[spec.shard_id] = Shard(spec, state=state)

    async def fetch(self) -> int:
        """As a start does: fetch, then verify."""
        listing = await self.weights.fetch(KEY, (self.source.url,), lambda _: None)
        assert await self.weights.verify(KEY, listing.bytes, lambda _: None) is None
        return listing.bytes

    @property
    def path(self) -> Path:
        return self.store.folder(KEY) / "files" / "model.bin"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with mirror(KEY.model, KEY.version, FILES) as source, aiohttp.ClientSession() as http:
        made = Here(tmp_path / "weights", http, source)
        yield made
        made.store.go.set()
        await made.desk.leave()


async def test_a_start_that_comes_during_a_removal_waits_and_fetches_again(here: Here) -> None:
    await here.fetch()
    asked = here.source.listings
    here.store.go.clear()
    removal = asyncio.ensure_future(here.desk.remove(KEY, force=False))
    await asyncio.sleep(0)  # the removal has looked at the users and marked the version
    start = asyncio.ensure_future(here.fetch())
    done, _ = await asyncio.wait({start}, timeout=0.2)
    assert not done, "it would have found files that are about to go"
    here.store.go.set()
    assert (await removal).freed_bytes == BYTES
    assert await start == BYTES
    assert here.source.listings > asked, "what was removed is wanted again, and is fetched again"
    assert here.path.read_bytes() == FILES["model.bin"]


@pytest.mark.parametrize("state", [one for one in ShardState if one is not ShardState.EXITED])
async def test_nothing_is_removed_under_a_shard_in_any_state_before_its_exit(
    here: Here, state: ShardState
) -> None:
    await here.fetch()
    here.shard(state)
    with pytest.raises(Conflict, match="in use by chat/1.1.0"):
        await here.desk.remove(KEY, force=False)
    assert here.path.exists()
    here.shards = {name: replace(one, state=ShardState.EXITED) for name, one in here.shards.items()}
    assert (await here.desk.remove(KEY, force=False)).freed_bytes == BYTES
    assert not here.path.exists()


@pytest.mark.parametrize("state", [ShardState.FETCHING, ShardState.VERIFYING])
async def test_not_even_force_removes_what_is_about_to_be_opened(here: Here, state: ShardState) -> None:
    await here.fetch()
    here.shard(state)
    with pytest.raises(Conflict, match=r"in use by chat/1.1.0: a start is under way .* has been stopped"):
        await here.desk.remove(KEY, force=True)
    assert here.path.exists()


async def test_forced_under_an_engine_the_bytes_are_not_said_to_be_free(here: Here) -> None:
    await here.fetch()
    here.shard(ShardState.SERVING)
    with here.path.open("rb") as mapped:
        removal = await here.desk.remove(KEY, force=True)
        assert mapped.read() == FILES["model.bin"], "the engine still has its file"
    assert removal.freed_bytes == 0
    assert "come free when chat/1.1.0 ended" in removal.text
    assert not here.path.exists()


async def test_of_two_removals_at_once_one_removes(here: Here) -> None:
    await here.fetch()
    here.store.go.clear()
    first = asyncio.ensure_future(here.desk.remove(KEY, force=False))
    second = asyncio.ensure_future(here.desk.remove(KEY, force=False))
    await asyncio.sleep(0)
    here.store.go.set()
    assert (await first).freed_bytes == BYTES
    with pytest.raises(NotFound):
        await second


async def test_who_asked_may_leave_and_the_version_stays_marked_until_it_is_gone(here: Here) -> None:
    await here.fetch()
    here.store.go.clear()
    removal = asyncio.ensure_future(here.desk.remove(KEY, force=False))
    await asyncio.sleep(0)
    removal.cancel()
    await asyncio.gather(removal, return_exceptions=True)
    start = asyncio.ensure_future(here.fetch())
    done, _ = await asyncio.wait({start}, timeout=0.2)
    assert not done
    here.store.go.set()
    assert await start == BYTES
    assert here.path.exists()


async def test_a_removal_ends_a_prefetch_and_a_prefetch_tells_how_it_goes(here: Here) -> None:
    here.source.fetching_for = 1_000_000
    here.desk.prefetch(KEY, (here.source.url,))
    await eventually(lambda: here.weights.fetching(KEY), "it is on its way")
    (held,) = here.desk.told_of(await here.weights.held())
    assert (held.key, held.bytes, held.complete, held.fetching) == (KEY, 0, False, True)
    assert here.desk.prefetch(KEY, (here.source.url,)) == f"{KEY} is on its way already"
    removal = await here.desk.remove(KEY, force=False)
    assert (removal.freed_bytes, "nothing of it had come" in removal.text) == (0, True)
    assert not here.weights.fetching(KEY)
    assert here.desk.told_of(await here.weights.held()) == ()


async def test_a_prefetch_that_fails_says_why_until_the_version_comes(here: Here) -> None:
    here.source.failed = "checksum differs"
    here.desk.prefetch(KEY, (here.source.url,))
    await eventually(lambda: here.desk.told_of(()) and here.desk.told_of(())[0].error, "the failure is told")
    assert "nothing of it had come" in (await here.desk.remove(KEY, force=False)).text
    assert here.desk.told_of(()) == (), "a failure is forgotten with what failed"
    with pytest.raises(NotFound):
        await here.desk.remove(KEY, force=False)
    here.source.failed = None
    here.desk.prefetch(KEY, (here.source.url,))
    await eventually(lambda: here.path.exists(), "it came")
    await eventually(lambda: not here.weights.fetching(KEY), "it is over")
    (held,) = here.desk.told_of(await here.weights.held())
    assert (held.complete, held.error, held.bytes) == (True, None, BYTES)


async def test_a_prefetch_that_the_disk_does_not_take_says_why(here: Here) -> None:
    in_the_way = here.store.folder(KEY).parent
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_bytes(b"")  # a file where a folder is to be
    here.desk.prefetch(KEY, (here.source.url,))
    await eventually(lambda: here.desk.told_of(()) and here.desk.told_of(())[0].error, "the failure is told")
    (held,) = here.desk.told_of(())
    assert (held.key, held.fetching) == (KEY, False)
    assert held.error is not None
    assert f"{KEY}: " in held.error
    in_the_way.unlink()
    here.desk.prefetch(KEY, (here.source.url,))
    await eventually(here.path.exists, "it came")


async def test_a_prefetch_that_meets_a_bug_of_ours_is_told_too(
    here: Here, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(here.weights, "fetch", None)  # cannot be called
    here.desk.prefetch(KEY, (here.source.url,))
    await eventually(lambda: here.desk.told_of(()) and here.desk.told_of(())[0].error, "the failure is told")
    assert "TypeError" in str(here.desk.told_of(())[0].error)
    assert "Traceback" in caplog.text, "who mends it needs the place"


async def test_prefetches_are_bounded(here: Here) -> None:
    here.source.fetching_for = 1_000_000
    for number in range(MOST):
        here.desk.prefetch(WeightsKey("org/chat", f"v{number + 1}"), (here.source.url,))
    with pytest.raises(Unavailable, match="at most"):
        here.desk.prefetch(WeightsKey("other", "v1"), (here.source.url,))
