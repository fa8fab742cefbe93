"""Exports asked for twice at once, or left by the disk or by Postgres, and a folder with others' files."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.bundle_files import BundleSeen, Writer
from llmgw_mirror.core.history import Kind
from llmgw_mirror.core.versions import Source
from llmgw_mirror.ports import Lease

from .scripted import Upstream
from .test_mirror_bundle_files import bring, bundling, export, filled
from .world import content_of, until, world


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """Where both mirrors look for bundles."""
    return tmp_path / "carried"


async def test_two_exports_of_one_name_at_once_are_one(tmp_path: Path, carried: Path, hub: Upstream) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        hub.files["/big"] = content_of(20_000_000, 1)
        await here.fetch(Source("big.bin", hub.url("/big")))
        first, second = await asyncio.gather(export(here), export(here))
        assert first == second
        said = await here.built.history.newest(model=None, version=None, since=None, limit=10)
        assert len([one for one in said if one.kind is Kind.EXPORTED]) == 1
        await until(lambda: not bundling(here).exports._jobs)


async def test_a_mirror_that_stops_ends_every_export(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for twice at once it is one task, which the stop reaches."""
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        exports = bundling(here).exports
        stays = asyncio.Event()

        async def waits(*_: object) -> None:
            await stays.wait()

        monkeypatch.setattr(exports, "_write", waits)
        asking = [asyncio.create_task(export(here)) for _ in range(2)]
        await until(lambda: any(task.get_name() == "export b.tar" for task in asyncio.all_tasks()))
        await exports.stop()
        for task in asking:
            with pytest.raises(Unavailable, match="the mirror is stopping"):
                await task
        assert [task for task in asyncio.all_tasks() if task.get_name() == "export b.tar"] == []


async def test_postgres_that_leaves_at_the_end_takes_no_finished_export_along(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        ledger = bundling(here).exports._ledger

        async def away(lease: Lease, **_: object) -> bool:
            raise Unavailable("Postgres does not answer")

        monkeypatch.setattr(ledger, "renew", away)
        monkeypatch.setattr(ledger, "release", away)
        seen = await export(here)
        assert seen.manifest is not None
        assert (carried / "b.tar").exists()


async def test_a_bundle_that_is_carried_off_in_the_last_moment_was_written(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        finish = Writer.finish

        def carry(writer: Writer) -> str:
            sha256 = finish(writer)
            for path in carried.iterdir():
                path.rename(tmp_path / path.name)
            return sha256

        monkeypatch.setattr(Writer, "finish", carry)
        seen = await export(here)
        assert (tmp_path / "b.tar.sha256").read_text().split()[0] == seen.sha256
        assert seen.size_bytes == (tmp_path / "b.tar").stat().st_size


@pytest.mark.parametrize("act", ["open", "ftruncate", "replace"])
async def test_a_disk_that_says_no_ends_an_export_in_words(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        real = getattr(os, act)

        def no(path: Any, *args: Any, **keys: Any) -> Any:
            if act == "ftruncate" or ".partial" in str(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(path, *args, **keys)

        with monkeypatch.context() as patched:
            patched.setattr(os, act, no)
            with pytest.raises(Unavailable, match="writing the bundle failed: Read-only") as refused:
                await export(here)
            assert refused.value.code == "disk_trouble"
        await export(here)


def unreadable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As another user's file is for whoever is not root."""
    real = Path.open

    def refuse(path: Path, *args: Any, **keys: Any) -> Any:
        if path.name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **keys)

    monkeypatch.setattr(Path, "open", refuse)


async def test_a_file_that_cannot_be_read_is_told_and_stands_in_nobodys_way(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await export(here)
        (carried / "theirs.tar").write_bytes(b"x")
        (carried / "dangling.tar").symlink_to("nowhere")
        unreadable(monkeypatch, "theirs.tar")
        seen: dict[str, BundleSeen] = {one.name: one for one in bundling(here).folder.every()}
        assert sorted(seen) == ["b.tar", "theirs.tar"]
        assert (seen["b.tar"].trouble, seen["theirs.tar"].trouble) == (
            None, "bundle theirs.tar cannot be read: Permission denied"
        )  # fmt: skip
        await export(here, bundle="c.tar")
    async with world(tmp_path / "b", bundle_dir=carried) as there:
        assert (await bring(there)).name == "b.tar"
        with pytest.raises(Unavailable, match=r"theirs\.tar cannot be read: Permission denied"):
            await bring(there, "theirs.tar")


async def test_a_bundle_folder_that_is_gone_is_told_in_words(
    tmp_path: Path, carried: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        carried.rmdir()
        with pytest.raises(Unavailable, match="the bundle folder cannot be read: No such file"):
            bundling(here).folder.every()
        with pytest.raises(Unavailable, match="bundle"):
            await bring(here)
        with pytest.raises(Unavailable, match="bundle"):
            await export(here)
