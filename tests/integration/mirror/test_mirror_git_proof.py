"""Files for which the registry publishes a git id and no sha256: proved by that, and said so."""

import hashlib
from pathlib import Path

import pytest

from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Proof, Source, WeightsState

from . import scripted
from .scripted import Upstream
from .world import World, content_of, sha256_of, until, world

BIG = content_of(2_500_000)


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("size", [None, len(BIG)])
async def test_right_content_is_proved_by_its_git_id(hub: Upstream, here: World, size: int | None) -> None:
    view = await here.fetch(Source("config.json", hub.put("/c", BIG), None, size, git_id(BIG)))
    assert (view.files[0].state, view.files[0].proof) == (WeightsState.PRESENT, Proof.GIT)
    assert view.files[0].sha256 == sha256_of(BIG)
    await until(lambda: len(here.built.flights) == 0)
    newest = await here.built.history.newest(model="org/m", version="v1", since=None, limit=5)
    assert [(e.kind, e.path, e.bytes, e.text) for e in newest] == [
        (Kind.PUBLISHED, "config.json", len(BIG), "proved by its git id"),
        (Kind.ASKED, None, None, "1 file to fetch"),
    ]


async def test_an_empty_file_has_a_git_id_too(hub: Upstream, here: World) -> None:
    view = await here.fetch(
        Source("e", hub.put("/e", b""), None, 0, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
    )
    assert view.files[0].proof is Proof.GIT


async def test_other_content_of_the_same_length_is_refused(hub: Upstream, here: World) -> None:
    """Right length is not right content."""
    other = content_of(len(BIG), seed=2)
    view = await here.fetch(Source("c", hub.put("/c", other), None, len(BIG), git_id(BIG)))
    assert view.state is WeightsState.FAILED
    assert (view.files[0].error or "").startswith(
        f"got git id {git_id(other)} (sha256 {sha256_of(other)}), expected git id {git_id(BIG)}; removed — "
    )
    assert here.blobs() == []
    assert here.parts() == []


async def test_it_is_joined_on_the_strength_of_it(hub: Upstream, here: World) -> None:
    hub.acts.append(scripted.cut(1_000_000, etag=False))
    view = await here.fetch(Source("c", hub.put("/c", BIG), None, None, git_id(BIG)))
    assert view.files[0].proof is Proof.GIT
    assert [request.first_byte for request in hub.requests] == [0, 1_000_000]


async def test_a_bad_seam_costs_one_more_transfer(hub: Upstream, here: World) -> None:
    hub.acts.extend([scripted.cut(1_000_000), scripted.corrupt(2_000_000)])
    view = await here.fetch(Source("c", hub.put("/c", BIG), None, None, git_id(BIG)))
    assert view.state is WeightsState.PRESENT
    assert [request.first_byte for request in hub.requests] == [0, 1_000_000, 0]


async def test_a_pointer_files_id_beside_a_sha256_is_not_looked_at(hub: Upstream, here: World) -> None:
    view = await here.fetch(Source("w", hub.put("/w", BIG), sha256_of(BIG), len(BIG), "ab" * 20))
    assert view.files[0].proof is Proof.SHA256


async def test_how_it_was_proved_outlives_a_restart(hub: Upstream, tmp_path: Path) -> None:
    async with world(tmp_path / "store") as before:
        await before.fetch(Source("c", hub.put("/c", BIG), None, None, git_id(BIG)))
    async with world(tmp_path / "store") as after:
        assert (await after.settled()).files[0].proof is Proof.GIT


async def test_failures_are_told_ever_less_often(hub: Upstream, here: World) -> None:
    file = Source("c", hub.put("/c", BIG))
    hub.acts.extend([scripted.status(404)] * 9)
    await here.fetch(file)
    for _ in range(8):
        await here.mirror.fetch("org/m", "v1", [])
        await here.settled()
    entries = await here.built.history.newest(model=None, version=None, since=None, limit=50)
    told = [entry.text for entry in reversed(entries) if entry.kind is Kind.FAILED]
    assert len(told) == 4
    assert told[2].endswith("(the 4th time in a row)")
    assert told[3].endswith("(the 8th time in a row)")
