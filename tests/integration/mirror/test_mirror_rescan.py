"""Rescan on a failing disk, and beside a mirror that is at work."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import StartupError, Unavailable
from llmgw_mirror.adapters import blob_reading
from llmgw_mirror.core.versions import Source
from llmgw_mirror.publishing import PUBLISHING
from llmgw_mirror.rescan import Report, rescan
from llmgw_mirror.settings import MirrorSettings

from .scripted import Upstream
from .test_mirror_proving import rot
from .world import content_of, sha256_of, until, world

BIG = content_of(300_000)
SHA = sha256_of(BIG)


async def scanned(settings: MirrorSettings, said: list[str] | None = None) -> Report:
    return await rescan(
        settings, SystemClock(), hash_all=True, progress=(said if said is not None else []).append
    )


@pytest.fixture
async def kept(hub: Upstream, tmp_path: Path) -> MirrorSettings:
    """The settings of a mirror that has ended and left one version."""
    async with world(tmp_path / "store") as here:
        await here.fetch(Source("w", hub.put("/w", BIG), SHA))
    return here.settings


def failing_with(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def pread(fd: int, count: int, at: int) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(blob_reading.os, "pread", pread)


async def test_content_that_the_disk_has_lost_is_rot(
    kept: MirrorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(errno.EIO, monkeypatch)
    report = await scanned(kept)
    (finding,) = report.findings
    assert not report.fine
    (said,) = finding.trouble
    assert said.startswith("w: damaged, the disk cannot read it after 0 bytes (Input/output error); moved to")
    store = kept.data_dir
    assert list(store.glob("blobs/sha256/*/*")) == []
    assert len(list((store / "damaged").iterdir())) == 1


async def test_content_that_cannot_be_read_now_is_left_and_told(
    kept: MirrorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(errno.ESTALE, monkeypatch)
    with pytest.raises(Unavailable, match=f"content {SHA} cannot be read now") as told:
        await scanned(kept)
    assert told.value.next_steps
    assert len(list(kept.data_dir.glob("blobs/sha256/*/*"))) == 1


async def test_content_is_moved_aside_under_the_lease_alone(
    hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    """Beside a mirror that has found the same rot and has good content in its place by then."""
    async with world(tmp_path / "store", dsn=migrated_dsn) as here:
        await here.fetch(Source("w", hub.put("/w", BIG), SHA))
        rot(here, SHA)
        lease = await here.built.ledger.acquire(PUBLISHING, ttl_s=60)
        assert lease is not None
        said: list[str] = []
        scan = asyncio.create_task(scanned(here.settings, said))
        await until(lambda: len(said) > 0)
        await asyncio.sleep(0.5)
        assert list(here.store.damaged.iterdir()) == []
        here.store.set_aside(SHA)
        here.store.blob(SHA).write_bytes(BIG)
        await here.built.ledger.release(lease)
        assert (await scan).fine
        assert here.store.blob(SHA).read_bytes() == BIG
        assert len(list(here.store.damaged.iterdir())) == 1


async def test_a_mistyped_folder_is_no_empty_store(tmp_path: Path) -> None:
    typo = tmp_path / "stroe"
    with pytest.raises(StartupError, match="holds no store"):
        await scanned(MirrorSettings.model_validate({"data_dir": typo}))
    assert not typo.exists()
