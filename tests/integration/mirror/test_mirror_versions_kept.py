"""Versions over their life: asked twice, restarted, removed, damaged."""

import asyncio
import errno
import hashlib
from pathlib import Path

import pytest

from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound, StartupError
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters.parts import Label
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.composition import build
from llmgw_mirror.core.versions import Source, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, sha256_of, until, world

BIG = content_of(2_500_000)
SHA = sha256_of(BIG)
SMALL = content_of(5_000, seed=9)


async def test_asked_again_it_is_answered_not_fetched(hub: Upstream, here: World) -> None:
    files = [Source("w", hub.put("/w", BIG), SHA)]
    await here.mirror.fetch("org/m", "v1", files)
    await here.settled()
    view = await here.mirror.fetch("org/m", "v1", files)
    assert view.state is WeightsState.PRESENT
    assert len(hub.requests) == 1


async def test_asked_again_with_other_files_it_is_a_conflict(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    with pytest.raises(Conflict, match=r"extra is new; w has another url") as refused:
        await here.mirror.fetch(
            "org/m", "v1", [Source("w", hub.url("/w?2"), SHA), Source("extra", hub.url("/e"))]
        )
    assert refused.value.code == "version_differs"
    assert refused.value.next_steps


async def test_asked_without_files_failed_ones_are_tried_again(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.status(404))
    view = await here.fetch(Source("a", hub.put("/a", BIG)), Source("b", hub.put("/b", SMALL)))
    assert view.state is WeightsState.FAILED
    assert sorted(file.state.value for file in view.files) == ["failed", "present"]
    await here.mirror.fetch("org/m", "v1", [])
    assert (await here.settled()).state is WeightsState.PRESENT
    assert len(hub.requests) == 3
    with pytest.raises(InvalidRequest, match="no files are named"):
        await here.mirror.fetch("org/m", "v9", [])


async def test_what_keeps_failing_is_not_asked_for_at_every_call(
    hub: Upstream, tmp_path: Path, fake_clock: FakeClock
) -> None:
    """A controller asks every few seconds for as long as a replica waits."""
    file = Source("w", hub.put("/w", BIG))
    hub.acts.extend([scripted.status(404)] * 4)
    async with world(tmp_path / "store", clock=fake_clock) as here:
        await here.fetch(file)
        assert (await here.fetch(file)).state is WeightsState.FAILED
        assert len(hub.requests) == 2
        for _ in range(3):
            assert (await here.mirror.fetch("org/m", "v1", [file])).state is WeightsState.FAILED
        assert len(hub.requests) == 2
        await fake_clock.advance(11)
        assert (await here.fetch(file)).state is WeightsState.FAILED
        assert len(hub.requests) == 3
        # A person who says "now" is believed.
        await here.mirror.fetch("org/m", "v1", [])
        assert (await here.settled()).state is WeightsState.FAILED
        assert len(hub.requests) == 4
        await here.mirror.fetch("org/m", "v1", [])
        assert (await here.settled()).state is WeightsState.PRESENT


async def test_a_retry_that_a_restart_interrupts_goes_on(hub: Upstream, tmp_path: Path) -> None:
    file = Source("w", hub.put("/w", BIG))
    hub.acts.extend([scripted.status(404), scripted.stall(1_000_000)])
    async with world(tmp_path / "store") as before:
        await before.fetch(file)
        await before.mirror.fetch("org/m", "v1", [file])
        await before.received(1_000_000)
    async with world(tmp_path / "store") as after:
        assert (await after.settled()).state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 0, 1_000_000]


async def test_a_failure_that_cannot_be_noted_is_still_one(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is too full even for that; the file is not tried again every pass."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(here.store, "put_failure", full)
    hub.acts.append(scripted.status(404))
    assert (await here.fetch(Source("w", hub.put("/w", BIG)))).state is WeightsState.FAILED
    await here.built.upkeep.look()
    assert (await here.settled()).state is WeightsState.FAILED
    assert len(hub.requests) == 1
    await here.mirror.fetch("org/m", "v1", [])
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_a_version_is_as_bad_as_its_worst_file(hub: Upstream, here: World) -> None:
    opened = asyncio.Event()
    hub.acts.append(scripted.gate(opened))
    files = [Source("a", hub.put("/a", SMALL)), Source("b", hub.put("/b", BIG))]
    await here.mirror.fetch("org/m", "v1", files)
    await until(lambda: len(here.blobs()) == 1)
    view = await here.mirror.version("org/m", "v1")
    assert view is not None
    assert view.state is WeightsState.FETCHING
    opened.set()
    assert (await here.settled()).state is WeightsState.PRESENT


async def test_a_restart_goes_on_where_it_was(hub: Upstream, tmp_path: Path) -> None:
    """H6: nothing that a process held outlives it; its part is read again and carried on."""
    hub.acts.append(scripted.stall(1_500_000))
    async with world(tmp_path / "store") as before:
        await before.mirror.fetch("org/m", "v1", [Source("w", hub.put("/w", BIG))])
        await before.received(1_500_000)
    async with world(tmp_path / "store") as after:
        assert (await after.settled()).state is WeightsState.PRESENT
        assert after.store.blob(SHA).read_bytes() == BIG
        assert after.parts() == []
    assert [request.first_byte for request in hub.requests] == [0, 1_500_000]


async def test_a_failure_outlives_a_restart_and_is_not_retried_by_itself(
    hub: Upstream, tmp_path: Path
) -> None:
    hub.acts.append(scripted.status(404))
    async with world(tmp_path / "store") as before:
        await before.fetch(Source("w", hub.put("/w", BIG)))
    async with world(tmp_path / "store") as after:
        view = await after.mirror.version("org/m", "v1")
        assert view is not None
        assert view.files[0].error is not None
        assert "404" in view.files[0].error
    assert len(hub.requests) == 1


async def test_removed_while_fetched_is_refused_and_afterwards_done(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.stall(1_000_000))
    await here.mirror.fetch(
        "org/m", "v1", [Source("w", hub.put("/w", BIG)), Source("s", hub.put("/s", SMALL))]
    )
    with pytest.raises(Conflict, match="is being fetched"):
        await here.removed("org/m", "v1")
    with pytest.raises(NotFound):
        await here.removed("org/m", "v2")


async def test_removing_frees_what_no_other_version_has(hub: Upstream, here: World) -> None:
    shared = Source("shared", hub.put("/shared", BIG), SHA)
    await here.fetch(shared, Source("own", hub.put("/own", SMALL)))
    await here.fetch(shared, version="v2")
    assert await here.removed("org/m", "v1") == len(SMALL)
    assert here.blobs() == [SHA]
    assert await here.mirror.version("org/m", "v1") is None
    assert (await here.settled("org/m", "v2")).state is WeightsState.PRESENT
    assert await here.removed("org/m", "v2") == len(BIG)
    assert here.blobs() == []


async def test_content_that_another_version_still_waits_for_stays(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    hub.acts.append(scripted.stall(100))
    # v2 wants the same content, and another file first.
    await here.mirror.fetch(
        "org/m", "v2", [Source("o", hub.put("/o", SMALL)), Source("w", hub.url("/w"), SHA)]
    )
    await here.removed("org/m", "v1")
    assert SHA in here.blobs()


async def test_removing_a_failed_version_frees_its_part(hub: Upstream, here: World) -> None:
    hub.acts.extend([scripted.cut(1_000_000), scripted.status(404)])
    await here.fetch(Source("w", hub.put("/w", BIG)))
    (part,) = here.parts()
    assert part.stat().st_size == 1_000_000
    assert await here.removed("org/m", "v1") == 1_000_000
    assert list(here.store.parts.iterdir()) == []


async def test_content_that_vanishes_is_fetched_again(hub: Upstream, here: World) -> None:
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    here.store.blob(SHA).unlink()
    assert (await here.settled()).state is WeightsState.PRESENT
    assert len(hub.requests) == 2
    # Cut short by the disk: the size tells.
    path = here.store.blob(SHA)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(5)
    await here.built.upkeep.look()
    assert (await here.settled()).state is WeightsState.PRESENT
    assert path.read_bytes() == BIG


async def test_two_who_look_at_content_cut_short_set_it_aside_once(hub: Upstream, here: World) -> None:
    """Both find it at the same moment; the second must neither fail nor start another fetch."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA), Source("again", hub.url("/w"), SHA))
    path = here.store.blob(SHA)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(5)
    looks = [here.mirror.version("org/m", "v1") for _ in range(4)]
    await asyncio.gather(*looks, here.built.upkeep.look())
    assert (await here.settled()).state is WeightsState.PRESENT
    assert path.read_bytes() == BIG
    assert len(list(here.store.damaged.iterdir())) == 1
    assert len(hub.requests) == 2


async def test_content_that_another_mirror_has_set_aside_is_set_aside(hub: Upstream, here: World) -> None:
    """Two processes hold no lock in common while they look."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    for _ in range(2):
        here.store.set_aside(SHA)
    assert len(list(here.store.damaged.iterdir())) == 1


async def test_no_room_is_told_before_a_byte_is_written(hub: Upstream, tmp_path: Path) -> None:
    async with world(tmp_path / "store", disk_reserve_bytes=1 << 60) as here:
        file = await here.fetch_one(hub.put("/w", BIG))
        assert file.state is WeightsState.FAILED
        assert file.error is not None
        assert f"{len(BIG)} bytes are needed" in file.error
        assert "remove versions that nobody needs" in file.error
        assert sum(part.stat().st_size for part in here.parts()) == 0


async def test_the_ledger_is_told_and_what_is_gone_is_forgotten(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    async with world(tmp_path / "store", dsn=migrated_dsn) as here:
        ledger = here.built.ledger
        await here.fetch(Source("w", hub.put("/w?signature=geheim", BIG), SHA))
        await here.built.upkeep.look()
        (recorded,) = await ledger.recorded()
        assert (recorded.model, recorded.version) == ("org/m", "v1")
        assert [(f.path, f.state, f.sha256, f.size_bytes) for f in recorded.files] == [
            ("w", WeightsState.PRESENT, SHA, len(BIG))
        ]
        await here.removed("org/m", "v1")
        await here.built.upkeep.look()
        assert await ledger.recorded() == []


async def test_a_second_mirror_without_a_database_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path / "store"):
        with pytest.raises(StartupError, match="another mirror without a dsn"):
            async with world(tmp_path / "store"):
                pass


async def test_content_of_no_version_is_removed_at_the_start(hub: Upstream, here: World) -> None:
    """A removal that was cut short between its two acts."""
    await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    here.store.remove(version_id("org/m", "v1"))
    assert here.blobs() == [SHA]
    await here.built.upkeep.tidy()
    assert here.blobs() == []


async def test_content_published_just_before_a_death_is_not_taken_for_left_over(
    hub: Upstream, tmp_path: Path
) -> None:
    """The content is in its place, its receipt was not written: only the part's label knows whose it is."""
    url = hub.put("/w", BIG)
    async with world(tmp_path / "store") as before:
        await before.fetch(Source("w", url))
        await until(lambda: len(before.built.flights) == 0)
        vid = version_id("org/m", "v1")
        (receipt,) = (before.store.versions / vid).glob("*.receipt.json")
        receipt.unlink()
        label = Label(f"url:{url}", None, '"first"', len(BIG), len(BIG), sha256=SHA)
        part = before.store.parts / f"{hashlib.sha256(label.key.encode()).hexdigest()[:32]}.1.gone.json"
        part.write_bytes(label.dump())
    async with build(before.settings, SystemClock()) as built:
        await built.upkeep.tidy()
        after = World(built, before.settings)
        assert (await after.settled()).state is WeightsState.PRESENT
        assert len(hub.requests) == 1
        await until(lambda: list(after.store.parts.iterdir()) == [])
