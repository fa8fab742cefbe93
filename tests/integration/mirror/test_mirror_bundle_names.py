"""Bundles whose names begin alike, and what a death at the end of an export leaves beside one."""

import hashlib
import os
from pathlib import Path

import pytest

from llmgw_kit.errors import NotFound
from llmgw_mirror.adapters import bundle_files
from llmgw_mirror.adapters.bundle_files import BundleFolder
from llmgw_mirror.adapters.disk import write_atomically
from llmgw_mirror.core.versions import Source

from .scripted import Upstream
from .test_mirror_bundle_files import bundling, export, filled
from .world import World, content_of, world


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    return tmp_path / "carried"


def begun(folder: Path, name: str) -> Path:
    """What an export under this name has written so far."""
    path = folder / f"{name}.0123456789ab.partial"
    path.write_bytes(b"x" * 5_000)
    return path


async def test_an_export_leaves_those_alone_whose_names_begin_like_its_own(
    tmp_path: Path, carried: Path, hub: Upstream
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        others = [begun(carried, "2026.llmgw"), begun(carried, "2026.0123456789ab"), begun(carried, "20260")]
        own = begun(carried, "2026")
        await export(here, bundle="2026")
        assert [path.exists() for path in others] == [True, True, True]
        assert not own.exists(), "nobody goes on with it"


class Died(BaseException):
    """The process ends here."""


async def dies_before_its(ending: str, here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export whose process ends just before it writes the small file that ends so."""
    real = write_atomically

    def act(path: Path, data: bytes, *, mode: int) -> None:
        if path.name.endswith(ending):
            raise Died
        real(path, data, mode=mode)

    with monkeypatch.context() as patched:
        patched.setattr(bundle_files, "write_atomically", act)
        with pytest.raises(Died):
            await export(here)


@pytest.mark.parametrize("ending", [".sha256", ".manifest.json"])
async def test_what_stands_beside_a_bundle_comes_after_it_and_is_completed(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await dies_before_its(ending, here, monkeypatch)
        content = (carried / "b.tar").read_bytes()
        assert not (carried / f"b.tar{ending}").exists()
        seen = await export(here)
        assert seen.sha256 == hashlib.sha256(content).hexdigest()
        assert (carried / "b.tar.sha256").read_text() == f"{seen.sha256}  b.tar\n"
        assert BundleFolder(carried).manifest("b.tar") == seen.manifest
        assert (carried / "b.tar.manifest.json").exists()


async def test_an_export_that_is_broken_off_leaves_no_manifest(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest alone says that its bundle was whole once; a later bundle builds on it."""
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)

        real = os.replace

        def dies(source: Path, target: Path) -> None:
            if target.name == "b.tar":
                raise Died
            real(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", dies)
            with pytest.raises(Died):
                await export(here)
        with pytest.raises(NotFound):
            await bundling(here).exports.plan([("org/m", "v1")], "later.tar", "b.tar")


async def test_what_an_earlier_bundle_of_the_name_left_is_replaced(
    tmp_path: Path, carried: Path, hub: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Carried off, its small files stayed; they must not speak for the next one, whatever dies when."""
    async with world(tmp_path / "a", bundle_dir=carried) as here:
        await filled(here, hub)
        await export(here)
        (carried / "b.tar").unlink()
        hub.files["/other"] = content_of(9_000, 9)
        await here.fetch(Source("other.bin", hub.url("/other")), version="v2")
        real = write_atomically

        def act(path: Path, data: bytes, *, mode: int) -> None:
            if path.name.startswith("b.tar."):
                raise Died
            real(path, data, mode=mode)

        with monkeypatch.context() as patched:
            patched.setattr(bundle_files, "write_atomically", act)
            with pytest.raises(Died):
                await export(here, "v2")
        actual = hashlib.sha256((carried / "b.tar").read_bytes()).hexdigest()
        assert BundleFolder(carried).every()[0].sha256 in (None, actual)
        assert (await export(here, "v2")).sha256 == actual
        (carried / "b.tar").unlink()
        assert BundleFolder(carried).manifest("b.tar").versions[0].version == "v2"
