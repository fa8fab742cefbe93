"""File URLs: only below the open folders, wherever a link leads."""

import os
from pathlib import Path

import pytest

from llmgw_mirror.core.versions import FileView, Source, WeightsState

from .world import World, content_of, sha256_of, world

BIG = content_of(2_500_000)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An open folder, and a secret beside it."""
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "w.gguf").write_bytes(BIG)
    return folder


async def fetched(here: World, url: str) -> FileView:
    return (await here.fetch(Source("w", url), version=str(abs(hash(url))))).files[0]


async def test_a_file_below_an_open_folder(models: Path, tmp_path: Path) -> None:
    async with world(tmp_path / "store", file_roots=[models]) as here:
        for path in (models / "sub" / "w.gguf", models / "sub" / ".." / "sub" / "w.gguf"):
            file = await fetched(here, f"file://{path}")
            assert (file.state, file.sha256) == (WeightsState.PRESENT, sha256_of(BIG))
        # The source is copied, not shared: what is published never changes.
        (models / "sub" / "w.gguf").write_bytes(b"changed")
        assert here.store.blob(sha256_of(BIG)).read_bytes() == BIG


async def test_a_quoted_name(models: Path, tmp_path: Path) -> None:
    (models / "mit Leerzeichen ü.bin").write_bytes(b"x")
    async with world(tmp_path / "store", file_roots=[models]) as here:
        file = await fetched(here, (models / "mit Leerzeichen ü.bin").as_uri())
        assert file.state is WeightsState.PRESENT


async def test_an_open_folder_may_itself_be_reached_by_a_link(models: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(models)
    async with world(tmp_path / "store", file_roots=[tmp_path / "link"]) as here:
        assert (await fetched(here, f"file://{tmp_path}/link/sub/w.gguf")).state is WeightsState.PRESENT
        assert (await fetched(here, f"file://{models}/sub/w.gguf")).state is WeightsState.PRESENT


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../secret", "outside the folders open to file URLs"),
        ("link-to-secret", "outside the folders"),
        ("link-folder/secret", "outside the folders"),
        ("%2e%2e/secret", "outside the folders"),
        ("sub", "not a regular file"),
        ("pipe", "not a regular file"),
        ("absent", "No such file"),
        ("../models-other/x", "outside the folders"),
    ],
)
async def test_refused(models: Path, tmp_path: Path, name: str, says: str) -> None:
    (models / "link-to-secret").symlink_to(tmp_path / "secret")
    (models / "link-folder").symlink_to(tmp_path)
    (tmp_path / "models-other").mkdir()
    (tmp_path / "models-other" / "x").write_bytes(b"x")
    os.mkfifo(models / "pipe")
    async with world(tmp_path / "store", file_roots=[models]) as here:
        file = await fetched(here, f"file://{models}/{name}")
        assert file.state is WeightsState.FAILED
        assert file.error is not None
        assert says in file.error
        assert here.blobs() == []


async def test_without_open_folders_all_are_refused(models: Path, tmp_path: Path) -> None:
    async with world(tmp_path / "store") as here:
        file = await fetched(here, f"file://{models}/sub/w.gguf")
        assert file.error is not None
        assert "name some in file_roots" in file.error
