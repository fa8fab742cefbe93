"""Removing versions: named readers, force, a way back, and room given back when it is needed."""

import asyncio
import errno
from pathlib import Path
from typing import Any, cast

import pytest

from llmgw.v1 import mirror_pb2
from llmgw_kit.errors import Conflict, NotFound, Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters import removals as removals_module
from llmgw_mirror.adapters.calls_keeping import KeepingCalls
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.removing import Removed, Removing

from . import scripted
from .scripted import Upstream
from .slow_reader import reading
from .world import World, content_of, listening, sha256_of, until, world

BIG = content_of(2_500_000)
SHA = sha256_of(BIG)
SMALL = content_of(5_000, seed=9)
#: More than the buffers of both sockets take, so that its reader is still there.
HUGE = content_of(24_000_000, seed=4)
FILE = "/v1/weights/org%2Fm/v1/files/w"


def removing(here: World) -> Removing:
    return here.built.keepers.keeping.removing


async def remove(here: World, version: str = "v1", **how: bool) -> Removed:
    return await removing(here).remove("org/m", version, asked_by="ada", **how)


async def kinds(here: World) -> list[Kind]:
    entries = await here.built.history.newest(model="org/m", version=None, since=None, limit=100)
    return [entry.kind for entry in reversed(entries)]


async def test_an_empty_name_of_who_asked_is_nobodys(hub: Upstream, here: World) -> None:
    """As with every other call: what careless clients send for "none" is none."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    calls, context = KeepingCalls(here.built.keepers.keeping), cast("Any", None)
    verify = mirror_pb2.VerifyVersionRequest(model="org/m", version="v1", asked_by="")
    assert [word async for word in calls.VerifyVersion(verify, context)]
    await calls.RemoveVersion(
        mirror_pb2.RemoveVersionRequest(model="org/m", version="v1", asked_by=""), context
    )
    (kept,) = await removing(here).removed()
    assert kept.asked_by is None
    await calls.RestoreVersion(
        mirror_pb2.RestoreVersionRequest(model="org/m", version="v1", asked_by=""), context
    )
    entries = await here.built.history.newest(model="org/m", version="v1", since=None, limit=100)
    assert [entry.asked_by for entry in entries] == [None] * len(entries)


async def test_a_removal_takes_out_of_service_at_once_and_can_be_undone(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    answer = await remove(here)
    assert (answer.freed_bytes, answer.shared_bytes, answer.readers) == (len(BIG), 0, ())
    assert answer.restorable_until is not None
    assert await here.mirror.version("org/m", "v1") is None
    (kept,) = await removing(here).removed()
    assert (kept.model, kept.version, kept.bytes, kept.asked_by) == ("org/m", "v1", len(BIG), "ada")
    # Nothing of it is garbage meanwhile.
    await here.built.upkeep.tidy()
    assert here.blobs() == [SHA]
    view = await removing(here).restore("org/m", "v1", asked_by="bob")
    assert view.state is WeightsState.PRESENT
    assert await removing(here).removed() == []
    assert len(hub.requests) == 1
    assert (await kinds(here))[-2:] == [Kind.REMOVED, Kind.RESTORED]


async def test_when_its_time_is_over_a_removal_is_purged_and_told(hub: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with world(tmp_path / "store", clock=clock, removal_undo_s=3600) as here:
        await here.fetch(Source("w", hub.put("/w", BIG), SHA))
        await remove(here)
        await clock.advance(3599)
        await here.built.upkeep.tidy()
        assert here.blobs() == [SHA]
        await clock.advance(2)
        with pytest.raises(NotFound, match="not among the removed ones") as refused:
            await removing(here).restore("org/m", "v1")
        assert refused.value.next_steps
        await here.built.upkeep.tidy()
        assert here.blobs() == []
        assert list((here.store.root / "removed").iterdir()) == []
        assert (await kinds(here))[-1] is Kind.PURGED


async def test_a_removal_outlives_a_restart(hub: Upstream, tmp_path: Path) -> None:
    async with world(tmp_path / "store") as before:
        await before.fetch(Source("w", hub.put("/w", BIG), SHA))
        await remove(before)
    async with world(tmp_path / "store") as after:
        await after.built.upkeep.tidy()
        await removing(after).restore("org/m", "v1")
        assert (await after.settled()).state is WeightsState.PRESENT
        assert after.store.blob(SHA).read_bytes() == BIG
    assert len(hub.requests) == 1


async def test_a_dry_run_says_the_same_and_changes_nothing(hub: Upstream, here: World) -> None:
    shared = Source("shared", hub.put("/shared", BIG), SHA)
    await here.fetch(shared, Source("own", hub.put("/own", SMALL)))
    await here.fetch(shared, version="v2")
    said = await remove(here, dry_run=True, now=True)
    assert (said.freed_bytes, said.shared_bytes, said.restorable_until) == (len(SMALL), len(BIG), None)
    assert (await here.settled()).state is WeightsState.PRESENT
    assert await removing(here).removed() == []
    assert await remove(here, now=True) == said
    assert here.blobs() == [SHA]


async def test_who_reads_it_is_named_and_finishes_when_forced(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", HUGE)))
    async with listening(here) as at, reading(at, FILE) as node:
        assert node.status == 200
        with pytest.raises(Conflict, match=r"is being read by 127\.0\.0\.1") as refused:
            await remove(here)
        assert refused.value.code == "being_read"
        assert (await remove(here, dry_run=True)).readers == ("127.0.0.1",)
        assert (await remove(here, force=True, now=True)).readers == ("127.0.0.1",)
        async with reading(at, FILE) as late:
            assert late.status == 404
        # Its bytes are gone from the store, and all come to whoever had begun.
        assert here.blobs() == []
        assert await node.rest() == HUGE


async def test_h29_a_removal_during_a_fetch_waits_for_the_writer_and_removes_the_part(
    hub: Upstream, here: World
) -> None:
    hub.acts.append(scripted.stall(1_500_000))
    await here.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
    await here.received(1_500_000)
    with pytest.raises(Conflict, match="is being fetched: w") as refused:
        await remove(here)
    assert refused.value.code == "being_fetched"
    answer = await remove(here, force=True)
    # Gathered or written: what is there when the writer has let go.
    assert answer.freed_bytes == 1_500_000
    assert len(here.built.flights) == 0
    assert list(here.store.parts.iterdir()) == []
    # Undone, it begins anew.
    await removing(here).restore("org/m", "v1")
    assert (await here.settled()).state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 0]


async def test_a_removal_at_one_mirror_ends_the_fetch_of_another(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    hub.acts.append(scripted.stall(1_500_000))
    shared: dict[str, Any] = {"dsn": migrated_dsn}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await one.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
        await one.received(1_500_000)
        with pytest.raises(Conflict, match="is being fetched"):
            await remove(two)
        await remove(two, force=True)
        await one.built.upkeep.look()
        assert len(one.built.flights) == 0
        await one.built.upkeep.collect_parts()
        assert list(one.store.parts.iterdir()) == []


async def test_content_of_a_removal_stays_when_another_version_with_it_is_purged(
    hub: Upstream, here: World
) -> None:
    file = Source("w", hub.put("/w", BIG), SHA)
    await here.fetch(file)
    await here.fetch(file, version="v2")
    await remove(here)
    answer = await remove(here, "v2", now=True)
    assert (answer.freed_bytes, answer.shared_bytes) == (0, len(BIG))
    assert here.blobs() == [SHA]
    assert (await removing(here).restore("org/m", "v1")).state is WeightsState.PRESENT


async def test_one_that_was_made_anew_is_not_overwritten(hub: Upstream, here: World) -> None:
    old, new = Source("w", hub.put("/w", BIG), SHA), Source("w", hub.put("/w2", SMALL))
    await here.fetch(old)
    await remove(here)
    await here.fetch(new)
    with pytest.raises(Conflict, match="made anew") as refused:
        await removing(here).restore("org/m", "v1")
    assert refused.value.code == "version_exists"
    assert (await here.settled()).files[0].sha256 == sha256_of(SMALL)
    # The newest removal is the one that is undone.
    await remove(here)
    view = await removing(here).restore("org/m", "v1")
    assert view.files[0].sha256 == sha256_of(SMALL)
    assert [one.bytes for one in await removing(here).removed()] == [len(BIG)]


async def test_a_fetch_that_needs_the_room_takes_the_oldest_removals_first(
    hub: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is refused for want of room (H9)."""
    async with world(tmp_path / "store") as here:
        for number in range(3):
            content = content_of(1_000_000, seed=number)
            await here.fetch(Source("w", hub.put(f"/{number}", content)), version=f"v{number}")
        for number in range(3):
            await remove(here, f"v{number}")
        capacity = 4_000_000

        def disk() -> tuple[int, int]:
            """A small one: what is not content is free."""
            return capacity, capacity - sum(here.store.blob_size(name) or 0 for name in here.blobs())

        monkeypatch.setattr(here.store, "disk", disk)
        await here.fetch(Source("w", hub.put("/big", BIG), SHA, len(BIG)), version="big")
        assert (await here.settled(version="big")).state is WeightsState.PRESENT
        # 1,000,000 were free and two removals had to go.
        assert [one.version for one in await removing(here).removed()] == ["v2"]
        # What would not be enough anyway is not given up for nothing.
        more = Source("w", hub.put("/more", content_of(3_000_000, seed=8)), None, 3_000_000)
        file = (await here.fetch(more, version="more")).files[0]
        assert file.state is WeightsState.FAILED
        assert "the disk has no room" in (file.error or "")
        assert [one.version for one in await removing(here).removed()] == ["v2"]


async def test_a_removal_that_cannot_be_noted_changes_nothing(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(removals_module, "write_atomically", full)
    with pytest.raises(Unavailable, match="nothing is removed"):
        await remove(here)
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_a_restored_version_that_was_not_whole_goes_on(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.status(404))
    await here.fetch(Source("gone", hub.put("/gone", SMALL)), Source("w", hub.put("/w", BIG), SHA))
    await remove(here)
    view = await removing(here).restore("org/m", "v1")
    # Its failure came along, too.
    assert view.state is WeightsState.FAILED
    await here.mirror.fetch("org/m", "v1", [])
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_what_a_removal_says_of_itself_being_damaged_costs_only_itself(
    hub: Upstream, here: World
) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    await remove(here)
    (folder,) = (here.store.root / "removed").iterdir()
    (folder / "removal.json").write_text("{")
    await here.built.upkeep.tidy()
    assert await removing(here).removed() == []
    assert list((here.store.root / "removed").iterdir()) == []
    assert here.blobs() == []


async def test_unknown_versions_are_told_as_such(here: World) -> None:
    for call in (removing(here).remove, removing(here).restore):
        with pytest.raises(NotFound, match="'v9' of 'org/m'"):
            await call("org/m", "v9")


async def test_old_lines_of_the_history_are_forgotten(hub: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with world(tmp_path / "store", clock=clock, history_keep_days=30) as here:
        for version, days in (("v1", 29), ("v2", 0)):
            await here.fetch(Source("w", hub.put("/w", SMALL)), version=version)
            await until(lambda: len(here.built.flights) == 0)
            await clock.advance(days * 86_400)
        await here.built.upkeep.tidy()
        assert len(await kinds(here)) == 4
        await clock.advance(2 * 86_400)
        await here.built.upkeep.tidy()
        entries = await here.built.history.newest(model=None, version=None, since=None, limit=100)
        assert {entry.version for entry in entries} == {"v2"}


async def test_content_of_no_version_is_removed_at_run_time_too(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    here.store.remove(version_id("org/m", "v1"))
    passes = asyncio.create_task(here.built.upkeep.run())
    await until(lambda: here.blobs() == [])
    passes.cancel()
