"""The lease on publishing while much is removed under it: two mirrors over one store, one of them slow."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from llmgw_mirror.core.versions import Source, WeightsState
from llmgw_mirror.publishing import PUBLISHING

from .scripted import Upstream
from .world import World, content_of, sha256_of, until, world

CONTENTS = {name: content_of(5_000, seed=n) for n, name in enumerate("abc")}


def sources(hub: Upstream) -> list[Source]:
    return [Source(name, hub.put(f"/{name}", body), sha256_of(body)) for name, body in CONTENTS.items()]


class Held:
    """Removing content takes as long as the test wants; every removal is noted."""

    def __init__(self, here: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.go_on = threading.Event()
        real = here.store.unlink_blob

        def slow(sha256: str) -> int:
            self.asked.append(sha256)
            assert self.go_on.wait(45)
            return real(sha256)

        monkeypatch.setattr(here.store, "unlink_blob", slow)


def purge(here: World) -> "asyncio.Task[int]":
    return asyncio.create_task(here.removed())


async def test_a_purge_that_outlasts_its_lease_keeps_it(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another mirror names the content that the purge is about to remove."""
    shared: dict[str, Any] = {"dsn": migrated_dsn, "lease_ttl_s": 1.0}
    async with world(tmp_path / "store", **shared) as one, world(tmp_path / "store", **shared) as two:
        await one.fetch(*sources(hub))
        held = Held(one, monkeypatch)
        removing = purge(one)
        await until(lambda: len(held.asked) == 1)
        await two.mirror.fetch("org/m", "v2", sources(hub))
        # Time for the lease to run out twice.
        await asyncio.sleep(2.5)
        view = await two.mirror.version("org/m", "v2")
        assert view is not None
        assert view.state is not WeightsState.PRESENT
        held.go_on.set()
        await removing
        assert (await two.settled(version="v2")).state is WeightsState.PRESENT
        assert len(two.blobs()) == len(CONTENTS)
        (stored,) = await two.built.flights.load_all()
        assert not stored.hollow


async def test_a_purge_whose_lease_was_taken_over_removes_nothing_more(
    hub: Upstream, tmp_path: Path, migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a freeze: what is named by nobody was found out before it."""
    async with world(tmp_path / "store", dsn=migrated_dsn) as one:
        await one.fetch(*sources(hub))
        held = Held(one, monkeypatch)
        removing = purge(one)
        await until(lambda: len(held.asked) == 1)
        link: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(migrated_dsn)
        taken = await link.execute(
            "UPDATE weights_leases SET holder = 'other', token = nextval('weights_lease_token')"
            " WHERE key = $1",
            PUBLISHING,
        )
        assert taken == "UPDATE 1"
        held.go_on.set()
        # The version is removed all the same, and what it told is what is gone.
        assert await removing == 5_000
        assert await one.mirror.version("org/m", "v1") is None
        assert len(held.asked) == 1
        assert len(one.blobs()) == 2
        # The other's lease was left alone; what is left goes once it can be had.
        assert await link.fetchval("SELECT holder FROM weights_leases WHERE key = $1", PUBLISHING) == "other"
        await link.execute("DELETE FROM weights_leases")
        await link.close()
        await one.built.upkeep.tidy()
        assert one.blobs() == []
