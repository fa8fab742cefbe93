"""Death before any act on the disk loses nothing but what was not yet written, and leaves nothing behind."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from .scripted import Upstream
from .world import content_of, sha256_of

BIG = content_of(1_500_000)
SHA = sha256_of(BIG)
ROOT = Path(__file__).parents[3]
PATIENCE_S = 100.0


async def drive(hub: Upstream, folder: Path, mode: str, *published: str) -> list[dict[str, Any]]:
    for number in range(400):
        hub.files[f"/{number}"] = BIG
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.mirror.crash_driver", mode, folder, hub.url(""), *published,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(driver.communicate(), PATIENCE_S)
    finally:
        if driver.returncode is None:
            driver.kill()
            await driver.wait()
    assert driver.returncode == 0, err.decode()[-3000:]
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has such a place: what dies is the process, not the disk."""
    if os.access("/dev/shm", os.W_OK):
        with TemporaryDirectory(dir="/dev/shm") as made:
            yield Path(made) / "store"
    else:
        yield tmp_path / "store"


@pytest.mark.parametrize(
    ("mode", "published"), [("first", ()), ("fetch", (SHA,))], ids=["as received", "by checksum"]
)
async def test_death_before_any_act_of_a_fetch(
    hub: Upstream, folder: Path, mode: str, published: tuple[str, ...]
) -> None:
    deaths = await drive(hub, folder, mode, *published)
    assert len(deaths) > 30
    assert {"fsync", "rename", "link", "pwrite"} <= {death.get("before") for death in deaths}
    for death in deaths:
        assert death["state"] == "present", death
        assert death["blobs"] == [SHA], death
        assert (death["parts"], death["versions"]) == (0, 1), death
    # What was written is never asked for again.
    for death in deaths[:-1]:
        asked = [request.first_byte for request in hub.requests if request.path == f"/{death['act']}"]
        written = death["written"]
        if written == 0:
            assert set(asked) == {0}, (death, asked)
        elif written < len(BIG):
            assert asked == [0, written], (death, asked)
        else:
            assert asked == [0], (death, asked)


async def test_death_before_any_act_of_a_removal(hub: Upstream, folder: Path) -> None:
    deaths = await drive(hub, folder, "remove")
    assert len(deaths) > 5
    for death in deaths:
        whole = (death["state"], death["blobs"], death["versions"]) == ("present", [SHA], 1)
        gone = (death["known"], death["blobs"], death["versions"]) == (False, [], 0)
        assert whole or gone, death
    assert deaths[0]["known"]
    assert not deaths[-1]["known"]
