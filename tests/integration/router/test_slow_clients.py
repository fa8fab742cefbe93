"""Clients that never finish what they begin cost a few kilobytes each and no time, and are told (M4)."""

import asyncio
import os
from pathlib import Path

from llmgw_router.core.config import Limits, RoutingProfile

from .ends import code_of
from .harness import BODY, CHAT, Router, router
from .upstream import Upstream, answering, json_answer

MANY = 500
HALF = b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\nx-a: " % CHAT


def _worker(r: Router) -> int:
    (worker,) = r.pool.workers
    assert worker.pid is not None
    return worker.pid


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_hundreds_of_half_heads_cost_next_to_nothing(tmp_path: Path) -> None:
    limits = Limits(sweep_s=0.02, request_head_s=4.0)
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port, limits=limits) as r,
        await r.client() as c,
    ):
        for _ in range(50):
            c.post(BODY)
            assert (await c.answer()).status == 200
        pid = _worker(r)
        before = _rss_bytes(pid)
        slow = [await r.client() for _ in range(MANY)]
        for one in slow:
            one.send(HALF)
        await r.until(lambda: r.pool.totals()["connections_open"] == MANY + 1)
        assert (_rss_bytes(pid) - before) / MANY < 16 * 1024
        # Others are served meanwhile. What a sweep over all of them costs says tests/bench/relay_steps.py.
        c.post(BODY)
        assert (await c.answer()).status == 200
        for one in slow:
            answer = await one.answer()
            assert (answer.status, code_of(answer.body)) == (408, "request_timeout")
            one.close()
        await r.until(lambda: r.pool.totals()["connections_open"] == 1)
        assert len(up.seen) == 51


async def test_a_head_that_trickles_has_no_longer_than_one_that_comes_at_once(tmp_path: Path) -> None:
    limits = Limits(sweep_s=0.02, request_head_s=0.3)
    async with router(tmp_path, limits=limits) as r, await r.client() as c:
        c.send(HALF)
        answer = asyncio.create_task(c.answer())
        async with asyncio.timeout(10):
            while not answer.done():
                c.send(b"x")
                await asyncio.sleep(0.02)
        told = await answer
        assert (told.status, code_of(told.body)) == (408, "request_timeout")


async def test_a_body_that_trickles_ends_with_the_total(tmp_path: Path) -> None:
    """Each byte is life for the idle limit; the whole has a limit of its own."""
    limits = Limits(sweep_s=0.02, request_body_idle_s=1.0)
    profile = RoutingProfile(total_s=0.4)
    async with router(tmp_path, limits=limits, profile=profile) as r, await r.client() as c:
        c.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 100000\r\n\r\n" % CHAT)
        answer = asyncio.create_task(c.answer())
        async with asyncio.timeout(10):
            while not answer.done():
                c.send(b"x")
                await asyncio.sleep(0.02)
        told = await answer
        assert (told.status, code_of(told.body)) == (408, "request_timeout")
        assert b"0.4 s" in told.body
