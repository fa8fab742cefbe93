"""Upstreams that answer without end: cut, while everybody else is served."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from llmgw.v1 import mirror_pb2
from llmgw_kit.testing.processes import Cage

from .test_mirror_process import source, start
from .world import PATIENCE_S

#: With a margin for a machine where everything else is being tested; a flood held it for 37 s.
SERVED_WITHIN_S = 5.0


@pytest.fixture
async def flood(cage: Cage, tmp_path: Path) -> AsyncIterator[str]:
    log = tmp_path / "flood.log"
    cage.spawn("flood", [sys.executable, "-m", "tests.integration.mirror.flood"], log=log)
    async with asyncio.timeout(PATIENCE_S):
        while not log.exists() or not log.read_bytes().endswith(b"\n"):
            await asyncio.sleep(0.02)
    yield f"http://127.0.0.1:{int(log.read_text())}"


@pytest.mark.parametrize("path", ["interim", "continue", "answers", "lines"])
async def test_a_file_whose_upstream_answers_without_end_fails_and_all_others_are_served(
    path: str, flood: str, cage: Cage, tmp_path: Path
) -> None:
    mirror = await start(cage, tmp_path, attempts=3, stall_window_s=5.0)
    await mirror.fetch(source("w.bin", f"{flood}/{path}"))
    slowest, settled = 0.0, None
    async with asyncio.timeout(PATIENCE_S):
        while settled is None:
            began = time.monotonic()
            assert (await mirror.get("/healthz"))[0] == 200
            slowest = max(slowest, time.monotonic() - began)
            status, _ = await mirror.get("/v1/weights/org%2Fm/v1")
            settled = None if status == 503 else status
            await asyncio.sleep(0.02)
    # One whole and empty answer is an answer.
    assert settled == (200 if path == "answers" else 502)
    assert slowest < SERVED_WITHIN_S
    assert "by a bug" not in mirror.child.tail()


async def test_a_registry_that_answers_without_end_is_in_trouble_and_all_others_are_served(
    flood: str, cage: Cage, tmp_path: Path
) -> None:
    mirror = await start(cage, tmp_path, registry_url=flood)
    async with mirror.stub() as stub:
        asked = asyncio.ensure_future(stub.Search(mirror_pb2.SearchRequest(), timeout=40))
        slowest = 0.0
        while not asked.done():
            began = time.monotonic()
            assert (await mirror.get("/healthz"))[0] == 200
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.02)
        with pytest.raises(grpc.aio.AioRpcError, match="interim answers"):
            await asked
    assert slowest < SERVED_WITHIN_S
