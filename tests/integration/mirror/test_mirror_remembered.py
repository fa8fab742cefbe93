"""What was read of a version is remembered until its folder, or its content, changes."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters import store as store_module
from llmgw_mirror.adapters.store import Store, open_store, version_id
from llmgw_mirror.core.versions import Failure, Proof, Receipt, Source, wish
from llmgw_mirror.core.warnings import of_version

from .scripted import Upstream
from .world import World, sha256_of

CONTENT = b"abc"
SHA = sha256_of(CONTENT)
VID = version_id("org/m", "v1")


class Reads:
    """How many small files were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, store_module._read_json

        def read(path: Path) -> object:
            self.count += 1
            return real(path)

        monkeypatch.setattr(store_module, "_read_json", read)

    def of(self, store: Store) -> int:
        before = self.count
        store.load(VID)
        return self.count - before


@pytest.fixture
def clock() -> FakeClock:
    # Later than every change of these tests: nothing hides behind the same time of change.
    return FakeClock(unix_s=time.time() + 60)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Store:
    made = open_store(tmp_path / "store", clock)
    made.create(wish("org/m", "v1", [Source("a", "http://h.invalid/a")], now=0.0))
    made.blob(SHA).parent.mkdir(exist_ok=True)
    made.blob(SHA).write_bytes(CONTENT)
    made.put_receipt(VID, "a", Receipt(SHA, 3, Proof.NONE, 0.0))
    return made


async def test_it_is_read_once(store: Store, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    reads = Reads(monkeypatch)
    assert [reads.of(store) > 0 for _ in range(3)] == [True, False, False]
    await clock.advance(400)
    assert reads.of(store) > 0, "where another machine's clock says when, it proves less"


def test_what_changed_just_now_is_read_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = open_store(tmp_path / "store", FakeClock(unix_s=time.time()))
    reads = Reads(monkeypatch)
    assert [reads.of(fresh) > 0 for _ in range(2)] == [True, True]


def test_every_act_is_seen_at_once(store: Store) -> None:
    store.load(VID)
    store.put_failure(VID, "a", Failure("why", 0.0, 1))
    (store.versions / VID / f"{store_module.file_id('a')}.receipt.json").unlink()
    stored = store.load(VID)
    assert stored is not None
    assert stored.failures["a"].error == "why"
    store.remove(VID)
    assert store.load(VID) is None
    assert store.ids() == []


def test_content_that_goes_away_or_is_proved_again_is_seen_at_once(store: Store) -> None:
    stored = store.load(VID)
    assert stored is not None
    store.blob(SHA).touch()
    later = store.load(VID)
    assert later is not None
    assert later.proved["a"] > stored.proved["a"]
    store.blob(SHA).write_bytes(b"longer")
    hollow = store.load(VID)
    assert hollow is not None
    assert (list(hollow.receipts), list(hollow.hollow)) == ([], ["a"])
    store.blob(SHA).write_bytes(CONTENT)
    back = store.load(VID)
    assert back is not None
    assert list(back.receipts) == ["a"]


async def test_lists_at_once_share_one_look(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("w", hub.put("/w", CONTENT)))
    looks, real = 0, here.built.flights.load_all

    async def counted() -> object:
        nonlocal looks
        looks += 1
        return await real()

    monkeypatch.setattr(here.built.flights, "load_all", counted)
    found = await asyncio.gather(*(here.mirror.versions() for _ in range(10)))
    assert [[view.version for view in views] for views in found] == [["v1"]] * 10
    assert looks == 1


async def test_an_exact_name_is_resolved_without_a_look_at_all(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.fetch(Source("w", hub.put("/w", CONTENT)), version="v1234")

    async def refused() -> object:
        raise AssertionError("every version is looked at")

    keeping = here.built.keepers.keeping
    with monkeypatch.context() as patched:
        patched.setattr(here.built.flights, "load_all", refused)
        exact = await keeping.resolve(model="org/m", version="v1234", repository=None, revision=None)
    short = await keeping.resolve(model="org/m", version="v123", repository=None, revision=None)
    assert exact.view == short.view


async def test_what_is_odd_about_files_is_found_out_once(
    hub: Upstream, here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, real = 0, of_version

    def counted(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return real(*given)

    monkeypatch.setattr("llmgw_mirror.keeping.of_version", counted)
    await here.fetch(Source("old.pt", hub.put("/w", CONTENT)))
    keeping = here.built.keepers.keeping
    (first,), (second,) = await keeping.versions(), await keeping.versions()
    assert first.warnings == second.warnings
    assert looks == 1
    await here.fetch(Source("new.pt", hub.url("/w")), version="v2")
    await keeping.versions()
    assert looks == 2
