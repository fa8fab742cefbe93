"""Engines that hang: each deadline, what the client is told, and who is blamed."""

import asyncio
import socket
from pathlib import Path

import pytest

from llmgw_router.core.config import INTERACTIVE, Limits, RoutingProfile, Telemetry, WorkerConfig

from .ends import code_of
from .harness import BODY, router
from .upstream import SSE_HEAD, Connection, Script, Upstream, answering, chunk, json_answer


async def silent(connection: Connection) -> None:
    await connection.request()
    await connection.closed_by_peer()


async def headers_only(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD)
    await connection.closed_by_peer()


@pytest.mark.parametrize("script", [silent, headers_only])
async def test_no_first_byte_in_time(tmp_path: Path, script: Script) -> None:
    profile = RoutingProfile(first_byte_s=0.1)
    async with Upstream(script) as up, router(tmp_path, up.port, profile=profile) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert (answer.status, code_of(answer.body)) == (504, "upstream_timeout_first_byte")
        assert b"0.1 s" in answer.body
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert (activity.in_flight, activity.failed) == (0, 1)


async def one_event_then_silence(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
    await connection.closed_by_peer()


async def test_silence_within_a_stream(tmp_path: Path) -> None:
    """W29."""
    profile = RoutingProfile(idle_s=0.1)
    async with (
        Upstream(one_event_then_silence) as up,
        router(tmp_path, up.port, profile=profile) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
        assert answer.complete
        assert b"stream_idle_timeout" in answer.body
        assert await c.ended()


async def test_the_total_ends_a_busy_stream(tmp_path: Path) -> None:
    """W30."""

    async def chatty(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        while True:
            await connection.send(chunk(b"data: x\n\n"))
            await asyncio.sleep(0.01)

    profile = RoutingProfile(total_s=0.15)
    async with Upstream(chatty) as up, router(tmp_path, up.port, profile=profile) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert b"deadline_exceeded" in answer.body
        assert answer.complete


async def test_a_connect_that_hangs_is_given_up_for_another(tmp_path: Path) -> None:
    # A listener whose accept queue is full: further handshakes are left hanging by the kernel.
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    port = full.getsockname()[1]
    stuffed = []
    for _ in range(3):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        stuffed.append(sock)
    profile = RoutingProfile(connect_s=0.1)
    try:
        async with router(tmp_path, port, profile=profile) as r, await r.client() as c:
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, code_of(answer.body)) == (504, "upstream_timeout_connect")
        async with (
            Upstream(answering(json_answer())) as up,
            router(tmp_path, port, up.port, profile=profile) as r,
            await r.client() as c,
        ):
            for _ in range(4):
                c.post(BODY)
                assert (await c.answer()).status == 200
    finally:
        for sock in (full, *stuffed):
            sock.close()


async def test_a_deadline_is_never_early_and_its_endpoint_is_named(tmp_path: Path) -> None:
    """The clock of a worker is as old as its last sweep, whenever a request comes; who was asked last stands
    in the record although nothing of it is held any more."""
    limit_s = 0.3
    config = WorkerConfig(
        limits=Limits(sweep_s=0.2),
        profiles={INTERACTIVE: RoutingProfile(first_byte_s=limit_s)},
        telemetry=Telemetry(access_log=True),
    )
    loop = asyncio.get_running_loop()
    async with Upstream(silent) as up, router(tmp_path, up.port, config=config) as r:

        async def timed(delay_s: float) -> float:
            await asyncio.sleep(delay_s)
            async with await r.client() as c:
                began = loop.time()
                c.post(BODY)
                assert (await c.answer()).status == 504
                return loop.time() - began

        took = await asyncio.gather(*(timed(0.03 * number) for number in range(7)))
        assert min(took) >= limit_s
        await r.until(lambda: len(r.heard.records) == 7)
    assert {record.endpoint_id for record in r.heard.records} == {"e0@1"}
