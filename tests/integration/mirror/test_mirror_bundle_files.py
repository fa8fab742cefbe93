"""Versions carried from one mirror to another in a file, with no network between them."""

import asyncio
import hashlib
import subprocess
import tarfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_mirror.adapters.bundle_files import BundleSeen, Writer
from llmgw_mirror.adapters.calls_bundles import Bundling
from llmgw_mirror.adapters.listings import listing, put_listing
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Proof, Repository, Source, WeightsState

from .scripted import Upstream
from .world import World, content_of, sha256_of, world

BIG, SMALL = content_of(300_000, 1), content_of(1_000, 2)
OTHER = content_of(50_000, 3)
PLACE = Repository("org/m", "1" * 40, "main")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where both mirrors look for bundles: a disk that is carried over."""
    return tmp_path / "carried"


def bundling(here: World) -> Bundling:
    made = here.built.bundling
    assert made is not None
    return made


async def filled(here: World, hub: Upstream) -> None:
    """A version of two files, one without any published checksum."""
    hub.files |= {"/big": BIG, "/small": SMALL}
    files = [
        Source("big.bin", hub.url("/big"), sha256_of(BIG), len(BIG)),
        Source("sub/small.json", hub.url("/small"), companion=True),
    ]
    await here.mirror.fetch("org/m", "v1", files, repository=PLACE)
    await here.settled()
    put_listing(here.store, version_id("org/m", "v1"), ["big.bin", "sub/small.json", "not-chosen.bin"])


async def export(here: World, *names: str, bundle: str = "b.tar", since: str | None = None) -> BundleSeen:
    told = bundling(here).exports.export(
        [("org/m", name) for name in names or ("v1",)], bundle, since=since, asked_by="anna"
    )
    last = [progress async for progress in told][-1]
    assert last.bundle is not None
    assert (last.done_bytes, last.done_files) == (last.total_bytes, last.total_files)
    return last.bundle


async def bring(here: World, bundle: str = "b.tar") -> BundleSeen:
    async with asyncio.timeout(30):
        last = [one async for one in bundling(here).imports.bring(bundle, asked_by="bert")][-1]
    assert last.bundle is not None
    return last.bundle


async def test_what_one_mirror_exports_another_imports_byte_for_byte(
    tmp_path: Path, folder: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        seen = await export(here)
    hub.files.clear()
    asked = len(hub.requests)
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        brought = await bring(there)
        assert brought.sha256 == seen.sha256
        view = await there.mirror.version("org/m", "v1")
        assert view is not None
        assert view.state is WeightsState.PRESENT
        assert view.repository == PLACE
        big, small = view.files
        assert there.store.blob(sha256_of(BIG)).read_bytes() == BIG
        assert there.store.blob(sha256_of(SMALL)).read_bytes() == SMALL
        # What nobody published is not said to be proved, only because the bundle had it proved.
        assert (big.proof, small.proof, small.source.sha256) == (Proof.SHA256, Proof.NONE, None)
        assert small.source.companion
        known = listing(there.store, version_id("org/m", "v1"))
        assert known == {"big.bin", "sub/small.json", "not-chosen.bin"}
        said = await there.built.history.newest(model="org/m", version="v1", since=None, limit=10)
        assert [(one.kind, one.asked_by) for one in said if one.kind is Kind.IMPORTED] == [
            (Kind.IMPORTED, "bert")
        ]
    assert len(hub.requests) == asked, "an import asks nobody"


async def test_the_file_is_one_that_other_tools_read(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        seen = await export(here)
    assert sorted(path.name for path in folder.iterdir()) == ["b.tar", "b.tar.manifest.json", "b.tar.sha256"]
    # Whoever carries it may read all of it.
    assert {path.stat().st_mode & 0o444 for path in folder.iterdir()} == {0o444}
    subprocess.run(["sha256sum", "--check", "--quiet", "b.tar.sha256"], cwd=folder, check=True)
    assert seen.sha256 == hashlib.sha256((folder / "b.tar").read_bytes()).hexdigest()
    with tarfile.open(folder / "b.tar") as tar:
        packed = tar.extractfile(f"blobs/sha256/{sha256_of(BIG)}")
        assert packed is not None
        assert packed.read() == BIG


async def test_exported_twice_it_is_the_same_bundle(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        first = await export(here)
        written = (folder / "b.tar").stat().st_mtime_ns
        assert await export(here) == first
        assert (folder / "b.tar").stat().st_mtime_ns == written
        hub.files["/other"] = OTHER
        await here.fetch(Source("other.bin", hub.url("/other")), version="v2")
        with pytest.raises(Conflict, match="there already, with other content") as refused:
            await export(here, "v1", "v2")
        assert refused.value.code == "bundle_exists"
        assert (folder / "b.tar").stat().st_mtime_ns == written


async def test_a_broken_off_export_goes_on_where_it_was(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        room = bundling(here)
        manifest = await room.exports.plan([("org/m", "v1")], "b.tar", None)
        # Killed after the first content, and what the disk kept of that is wrong in one byte.
        writer = Writer(room.folder, manifest)
        for member in writer.layout.members[:2]:
            list(writer.write(member, None))
        writer.close()
        (partial,) = folder.glob("*.partial")
        begun = partial.read_bytes()
        first = writer.layout.members[2]
        spoiled = BIG[:1000] + bytes([BIG[1000] ^ 1]) + BIG[1001:]
        partial.write_bytes(begun + first.header + spoiled + first.padding + b"\0" * 100)
        inode = partial.stat().st_ino
        assert [one.partial for one in room.folder.every()] == [True]
        seen = await export(here)
        assert (folder / "b.tar").stat().st_ino == inode
        assert not partial.exists()
    assert seen.manifest == manifest
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        await bring(there)
        assert there.store.blob(sha256_of(BIG)).read_bytes() == BIG


async def test_one_begun_for_other_versions_begins_anew(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        (folder / "b.tar.0123456789ab.partial").write_bytes(b"x" * 1_000_000)
        await export(here)
        assert (folder / "b.tar").stat().st_size < 400_000
        assert list(folder.glob("*.partial")) == [], "nobody goes on with it"


async def test_a_later_bundle_needs_the_earlier_one(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        await export(here)
        hub.files["/other"] = OTHER
        await here.fetch(
            Source("big.bin", hub.url("/big"), sha256_of(BIG), len(BIG)),
            Source("other.bin", hub.url("/other"), sha256_of(OTHER)),
            version="v2",
        )
        # The earlier one has left already; its manifest is enough to build on.
        (folder / "b.tar").rename(tmp_path / "b.tar")
        second = await export(here, "v2", bundle="c.tar", since="b.tar")
        assert second.size_bytes < len(OTHER) + 20_000
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        with pytest.raises(Conflict, match=r"builds on 'b.tar': 1 of its files are not here") as refused:
            await bring(there, "c.tar")
        assert refused.value.next_steps[0] == "llmgwctl mirror import b.tar"
        assert await there.mirror.versions() == [], "refused as a whole"
        (tmp_path / "b.tar").rename(folder / "b.tar")
        await bring(there)
        await bring(there, "c.tar")
        assert there.store.blob(sha256_of(OTHER)).read_bytes() == OTHER
        assert len(there.blobs()) == 3


async def test_rotten_content_is_not_exported(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        blob = here.store.blob(sha256_of(BIG))
        blob.chmod(0o644)
        blob.write_bytes(b"!" + BIG[1:])
        with pytest.raises(LlmgwError, match=r"big\.bin is not what it was") as refused:
            await export(here)
        assert refused.value.code == "rotten"
        assert not (folder / "b.tar").exists()
        # Healed, it goes on, and nothing of the wrong bytes is left.
        blob.write_bytes(BIG)
        await export(here)
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        await bring(there)
        assert there.store.blob(sha256_of(BIG)).read_bytes() == BIG


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: data[:-1], "has .* bytes, its manifest says"),
        (lambda data: data[:3] + b"\0" + data[4:], "no bundle of this release"),
        (lambda data: data.replace(b'"org/m"', b'"org/x"', 1), "damaged at byte"),
        (lambda data: data.replace(b"blobs/sha256/", b"blobs/sha255/", 1), "damaged at byte"),
        (lambda data: b"", "no bundle"),
    ],
    ids=["cut", "first block", "manifest", "a header", "empty"],
)
async def test_a_damaged_bundle_brings_nothing(
    tmp_path: Path, folder: Path, hub: Upstream, spoil: object, told: str
) -> None:
    assert callable(spoil)
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        await export(here)
    path = folder / "b.tar"
    path.write_bytes(spoil(path.read_bytes()))
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        with pytest.raises(InvalidRequest, match=told):
            await bring(there)
        assert await there.mirror.versions() == []
        assert [one.trouble is not None for one in bundling(there).folder.every()] == ["no bundle" in told]


async def test_wrong_content_is_found_and_never_served(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        await export(here)
    path = folder / "b.tar"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(BIG[1000:1100], bytes(100), 1))
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        with pytest.raises(Conflict, match=r"1 of 2 files .* did not come: big\.bin: got sha256"):
            await bring(there)
        view = await there.mirror.version("org/m", "v1")
        assert view is not None
        assert view.state is WeightsState.FAILED
        assert there.blobs() == [sha256_of(SMALL)]
        # Copied again, the rest comes.
        path.write_bytes(whole)
        await bring(there)
        assert there.store.blob(sha256_of(BIG)).read_bytes() == BIG


async def test_a_version_of_that_name_with_other_files_stops_the_import_before_it_begins(
    tmp_path: Path, folder: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        await here.fetch(Source("small.bin", hub.url("/small")), version="v0")
        await export(here, "v0", "v1")
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        hub.files["/other"] = OTHER
        await there.fetch(Source("big.bin", hub.url("/other")), version="v1")
        with pytest.raises(Conflict, match=r"'v1' of 'org/m' is here already and is another"):
            await bring(there)
        assert [view.version for view in await there.mirror.versions()] == ["v1"], "v0 did not come alone"


async def test_a_restart_goes_on_with_the_bundle_by_itself(
    tmp_path: Path, folder: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        await export(here)
    hub.files.clear()
    asked = len(hub.requests)
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(world(tmp_path / "b", bundle_dir=folder))
        manifest = await bundling(there).imports.plan("b.tar")
        # Noted, and killed before a byte came.
        await bundling(there).imports._noted(manifest)
    async with world(tmp_path / "b", bundle_dir=folder) as again:
        view = await again.settled()
        assert view.state is WeightsState.PRESENT
    assert len(hub.requests) == asked


async def test_a_lost_blob_is_taken_from_the_bundle_again(
    tmp_path: Path, folder: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        await export(here)
    hub.files.clear()
    async with world(tmp_path / "b", bundle_dir=folder) as there:
        await bring(there)
        there.store.unlink_blob(sha256_of(SMALL))
        assert (await there.settled()).state is WeightsState.PRESENT
        assert there.store.blob(sha256_of(SMALL)).read_bytes() == SMALL


async def test_unknown_names_and_no_room_are_told(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        with pytest.raises(NotFound, match="no bundle 'x.tar' lies in"):
            await bring(here, "x.tar")
        with pytest.raises(NotFound, match="'v9' of 'org/m' is not known"):
            await export(here, "v9")
        with pytest.raises(InvalidRequest, match="refused"):
            await export(here, bundle="../x.tar")
        with pytest.raises(InvalidRequest, match="no version is named"):
            [one async for one in bundling(here).exports.export([], "b.tar", since=None, asked_by=None)]
    async with world(tmp_path / "a", bundle_dir=folder, disk_reserve_bytes=2**60) as here:
        with pytest.raises(Unavailable, match="the bundle folder has no room"):
            await export(here)
    assert list(folder.iterdir()) == []


async def test_who_watches_may_leave_and_come_back(tmp_path: Path, folder: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=folder) as here:
        await filled(here, hub)
        told = bundling(here).exports.export([("org/m", "v1")], "b.tar", since=None, asked_by=None)
        first = await anext(told)
        assert first.bundle is None
        await told.aclose()
        await export(here)
        assert (folder / "b.tar").exists()
