"""Imports beside others who change the same versions, and on a disk that says no."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import Conflict, Unavailable
from llmgw_mirror.adapters.bundle_files import BundleFolder
from llmgw_mirror.adapters.bundle_marks import NAME, BundleMarks
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.bundles import Manifest
from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Proof, Source, WeightsState, Wish

from .scripted import Upstream, gate
from .test_mirror_bundle_files import BIG, OTHER, SMALL, bring, bundling, export, filled
from .world import World, sha256_of, until, world


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """Where both mirrors look for bundles."""
    return tmp_path / "carried"


def meanwhile(here: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Between the look at the whole and the first change of an import."""
    imports = bundling(here).imports
    plan = imports.plan

    async def planned(bundle: str) -> Manifest:
        manifest = await plan(bundle)
        await act()
        return manifest

    monkeypatch.setattr(imports, "plan", planned)


async def test_a_version_that_is_asked_for_in_that_moment_keeps_what_it_was_asked_as(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await here.fetch(Source("small.bin", hub.url("/small")), version="v0")
        await export(here, "v0", "v1")
    hub.files["/other"] = OTHER
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        files = [
            Source("big.bin", hub.url("/other"), sha256_of(OTHER)),
            Source("sub/small.json", hub.url("/small")),
        ]

        async def asked() -> None:
            await there.mirror.fetch("org/m", "v1", files)
            await there.mirror.cancel("org/m", "v1")

        meanwhile(there, monkeypatch, asked)
        with pytest.raises(Conflict, match="'v1' of 'org/m' is here already and is another") as refused:
            await bring(there)
        assert refused.value.code == "version_differs"
        assert not (there.store.versions / version_id("org/m", "v1") / NAME).exists(), "no note is left"
        assert [view.version for view in await there.mirror.versions()] == ["v1"], "v0 did not come alone"
        await there.mirror.retry("org/m", "v1")
        big, _ = (await there.settled()).files
        assert (big.state, big.sha256) == (WeightsState.PRESENT, sha256_of(OTHER))


async def test_other_bytes_that_were_under_way_before_are_not_told_as_the_bundles(
    tmp_path: Path, carried: Path, hub: Upstream
) -> None:
    """Nobody published a checksum, so that they differ is seen only when they are here."""
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        hub.files["/w"] = SMALL
        await here.fetch(Source("w.bin", hub.url("/w")))
        await export(here)
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        opened = asyncio.Event()
        hub.files["/w"] = OTHER
        hub.acts_on["/w"] = gate(opened)
        await there.mirror.fetch("org/m", "v1", [Source("w.bin", hub.url("/w"))])
        importing = asyncio.create_task(bring(there))
        noted = there.store.versions / version_id("org/m", "v1") / NAME
        await until(noted.exists)
        opened.set()
        with pytest.raises(Conflict, match=rf"w\.bin: it came as {sha256_of(OTHER)[:12]}… from elsewhere"):
            await importing


@pytest.mark.parametrize(
    "published",
    [{"sha256": sha256_of(OTHER)}, {"git_id": "3" * 40}],
    ids=["another sha256", "a git id that the bundle does not know"],
)
async def test_a_bundle_never_stands_in_for_what_was_published(
    tmp_path: Path, carried: Path, hub: Upstream, published: dict[str, str]
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await export(here)
        manifest = await bundling(here).exports.plan([("org/m", "v1")], "b.tar", None)
        vid, marks = version_id("org/m", "v1"), BundleMarks(here.store, BundleFolder(carried))
        marks.put(vid, "b.tar", manifest.versions[0])
        asked = Source("big.bin", "http://up.test/big", **published)  # type: ignore[arg-type]
        assert marks.instead(vid, asked) == (asked, None)
        own, proof = marks.instead(vid, Source("big.bin", "http://up.test/big", sha256_of(BIG)))
        assert (own.url, proof) == (f"bundle:b.tar/{sha256_of(BIG)}", Proof.SHA256)


async def test_content_that_was_lost_is_not_replaced_by_a_bundles(
    tmp_path: Path, carried: Path, hub: Upstream
) -> None:
    """Nobody published a checksum; what the version was is known all the same."""
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        hub.files["/w"] = SMALL
        await here.fetch(Source("w.bin", hub.url("/w")))
        await export(here)
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        hub.files["/w"] = OTHER
        await there.fetch(Source("w.bin", hub.url("/w")))
        there.store.unlink_blob(sha256_of(OTHER))
        with pytest.raises(Conflict, match=r"w\.bin has the content"):
            await bring(there)


async def test_a_full_disk_at_the_second_version_leaves_neither(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await here.fetch(Source("small.bin", hub.url("/small")), version="v0")
        await here.fetch(Source("small.bin", hub.url("/small")), version="v9")
        await export(here, "v9", "v0", "v1")
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        await there.mirror.fetch("org/m", "v9", [Source("small.bin", hub.url("/gone"))])
        await there.mirror.cancel("org/m", "v9")
        create = there.store.create

        def full(wish: Wish, **keys: Any) -> bool:
            if wish.version == "v1":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return create(wish, **keys)

        with monkeypatch.context() as patched:
            patched.setattr(there.store, "create", full)
            with pytest.raises(Unavailable, match="nothing is imported: the disk says No space") as refused:
                await bring(there)
        assert refused.value.code == "disk_trouble"
        assert [view.version for view in await there.mirror.versions()] == ["v9"]
        assert not (there.store.versions / version_id("org/m", "v9") / NAME).exists()
        view = await there.mirror.version("org/m", "v9")
        assert view is not None
        assert view.files[0].cancelled, "its stop stands again"
        said = await there.built.history.newest(model=None, version=None, since=None, limit=10)
        assert [one for one in said if one.kind is Kind.IMPORTED] == []
        # With room again, all comes.
        await bring(there)
        assert [view.state for view in await there.mirror.versions()] == [WeightsState.PRESENT] * 3


async def test_a_disk_that_lets_nothing_be_taken_back_is_told_as_such(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await here.fetch(Source("small.bin", hub.url("/small")), version="v0")
        await export(here, "v0", "v1")
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        create = there.store.create

        def no(*_: object) -> bool:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with monkeypatch.context() as patched:
            patched.setattr(
                there.store, "create", lambda wish, **k: (wish.version == "v0" and create(wish, **k)) or no()
            )
            patched.setattr(there.store, "remove", no)
            with pytest.raises(Unavailable, match="begun and stays so in part: the disk says Read-only"):
                await bring(there)
        await bring(there)
        assert [view.state for view in await there.mirror.versions()] == [WeightsState.PRESENT] * 2


async def test_no_room_for_the_notes_is_told_before_the_first(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await export(here)
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        monkeypatch.setattr(there.store, "disk", lambda: (10**9, 5_000))
        with pytest.raises(Unavailable, match="no room for its notes") as refused:
            await bring(there)
        assert refused.value.code == "disk_full"
        assert await there.mirror.versions() == []


async def test_a_version_that_another_mirror_removes_in_that_moment_is_told_as_removed(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await export(here)
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        create = there.store.create

        def removed(wish: Wish, **keys: Any) -> bool:
            made = create(wish, **keys)
            there.store.remove(version_id(wish.model, wish.version))
            return made

        monkeypatch.setattr(there.store, "create", removed)
        with pytest.raises(Conflict, match="was removed during the import"):
            await bring(there)


async def test_two_versions_of_one_content_bring_it_once(
    tmp_path: Path, carried: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        # Once with a checksum, once without: what proved it stays each version's own.
        await here.fetch(Source("same.bin", hub.url("/big")), version="v2")
        seen = await export(here, "v1", "v2")
        assert seen.size_bytes < len(BIG) + 20_000
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        await bring(there)
        views = {view.version: view for view in await there.mirror.versions()}
        assert {name: view.state for name, view in views.items()} == {
            "v1": WeightsState.PRESENT, "v2": WeightsState.PRESENT
        }  # fmt: skip
        assert views["v2"].files[0].proof is Proof.NONE
        assert there.blobs() == sorted({sha256_of(BIG), sha256_of(SMALL)})
