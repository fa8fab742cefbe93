"""The index of what Hub clients are offered: read once, and again when the store changed, by whomever."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.adapters.hub_index import TRUSTED_S, TRUSTED_SOON_S, HubIndex
from llmgw_mirror.adapters.listings import put_listing
from llmgw_mirror.adapters.store import Store, Stored, open_store, version_id
from llmgw_mirror.core.hub import HeldFile, Offer
from llmgw_mirror.core.versions import Cancelled, Failure, Proof, Receipt, Repository, Source, wish

COMMIT = "a" * 40
SHA = "ab" * 32
VID = version_id("org/m", "v1")
RECEIPT = Receipt(SHA, 3, Proof.NONE, 0.0)


class CountingStore(Store):
    """Says how often a version was read."""

    loads = 0

    def load(self, vid: str) -> Stored | None:
        self.loads += 1
        return super().load(vid)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    made = open_store(tmp_path / "store")
    return CountingStore(made.root, made.store_id)


@pytest.fixture
def clock() -> FakeClock:
    # Later than every change of these tests: nothing hides behind the same time of change.
    return FakeClock(unix_s=time.time() + 60)


@pytest.fixture
def index(store: CountingStore, clock: FakeClock) -> Iterator[HubIndex]:
    made = HubIndex(store, clock)
    yield made
    made.close()


def create(store: Store, version: str = "v1", model: str = "org/m") -> str:
    files = [Source("a", "http://h.invalid/a"), Source("b", "http://h.invalid/b")]
    store.create(wish(model, version, files, now=0.0, repository=Repository(model, COMMIT, "main")))
    return version_id(model, version)


def blob(store: Store, content: bytes = b"abc") -> None:
    store.blob(SHA).parent.mkdir(exist_ok=True)
    store.blob(SHA).write_bytes(content)


async def only(index: HubIndex) -> Offer:
    (offer,) = await index.repository("org/m")
    return offer


async def test_a_version_is_read_once(store: CountingStore, index: HubIndex) -> None:
    create(store)
    create(store, model="org/other")
    for _ in range(5):
        await only(index)
    assert store.loads == 2, "once each, to learn whose it is"
    assert sorted(await index.repositories()) == ["org/m", "org/other"]
    assert store.loads == 2
    assert await index.repository("org/none") == []


@pytest.mark.parametrize(
    ("act", "seen"),
    [
        (lambda s: s.put_receipt(VID, "a", RECEIPT), lambda o: set(o.held) == {"a"}),
        (lambda s: s.put_failure(VID, "a", Failure("broken", 0.0)), lambda o: o.stuck == {"a": "broken"}),
        (lambda s: s.stop(VID, "a", Cancelled(0.0)), lambda o: set(o.stuck) == {"a"}),
        (lambda s: put_listing(s, VID, ["a", "b", "c"]), lambda o: o.listing == {"a", "b", "c"}),
    ],
    ids=["a receipt", "a failure", "a stop", "a listing"],
)
async def test_every_act_on_a_version_is_seen_at_once(
    store: CountingStore, index: HubIndex, act: Callable[[Store], object], seen: Callable[[Offer], bool]
) -> None:
    create(store)
    blob(store)
    assert not seen(await only(index))
    act(store)
    assert seen(await only(index))


async def test_versions_come_and_go(store: CountingStore, index: HubIndex) -> None:
    create(store)
    await only(index)
    create(store, "v2")
    assert len(await index.repository("org/m")) == 2
    store.remove(VID)
    assert (await only(index)).version == "v2"
    store.remove(version_id("org/m", "v2"))
    assert await index.repository("org/m") == []
    assert await index.repositories() == {}


async def test_what_was_read_just_after_a_change_is_soon_read_again(store: CountingStore) -> None:
    """Two changes in one tick of the file system's clock look like one."""
    create(store)
    clock = FakeClock(unix_s=time.time())
    early = HubIndex(store, clock)
    try:
        await only(early)
        before = (store.versions / VID).stat()
        store.put_failure(VID, "a", Failure("broken", 0.0))
        os.utime(store.versions / VID, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (await only(early)).stuck == {}
        await clock.advance(TRUSTED_SOON_S)
        assert (await only(early)).stuck == {"a": "broken"}
    finally:
        early.close()


async def test_no_reading_is_trusted_for_ever(
    store: CountingStore, index: HubIndex, clock: FakeClock
) -> None:
    create(store)
    await only(index)
    await clock.advance(TRUSTED_S / 2)
    await only(index)
    assert store.loads == 1
    await clock.advance(TRUSTED_S / 2)
    await only(index)
    assert store.loads == 2


async def test_content_is_looked_at_itself(store: CountingStore, index: HubIndex) -> None:
    """H27: a receipt may outlive its content for a moment."""
    file = HeldFile("a", SHA, 3, None)
    assert not await index.there(file)
    blob(store)
    assert await index.there(file)
    blob(store, b"abcd")
    assert not await index.there(file)
