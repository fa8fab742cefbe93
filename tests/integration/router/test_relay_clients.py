"""Clients that leave or do not read: what the engine feels of it, and that nobody is blamed."""

import asyncio
from pathlib import Path
from typing import cast

import msgspec

from llmgw_router.core.config import RoutingProfile

from .harness import BODY, QUICK, STEP_S, Client, router
from .upstream import LAST, SSE_HEAD, Connection, Script, Upstream, answering, chunk, json_answer

#: Far below every deadline that would end the exchange otherwise, and far above what a busy machine takes.
PROMPT_S = 5.0


async def leaves_and_measures(tmp_path: Path, script_until_left: Script, client_does: str) -> None:
    left_at = 0.0
    gone_at: list[float] = []

    async def watched(connection: Connection) -> None:
        await script_until_left(connection)
        gone_at.append(await connection.closed_by_peer())

    async with Upstream(watched) as up, router(tmp_path, up.port) as r:
        c: Client = await r.client()
        c.post(BODY)
        if client_does == "reads":
            await c.head()
            await c.chunk()
        else:
            await r.until(lambda: up.seen)
        left_at = asyncio.get_running_loop().time()
        c.close()
        await r.until(lambda: gone_at)
        assert gone_at[0] - left_at < PROMPT_S
        await r.until(lambda: r.pool.totals()["client_gone"] == 1)
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert (activity.in_flight, activity.failed, activity.broken) == (0, 0, 0)
        assert activity.last_touch_ns is not None


async def only_reads(connection: Connection) -> None:
    await connection.request()


async def streams_one(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))


async def test_client_gone_before_the_first_byte(tmp_path: Path) -> None:
    """W31, W33."""
    await leaves_and_measures(tmp_path, only_reads, "waits")


async def test_client_gone_in_mid_stream(tmp_path: Path) -> None:
    """W31, W33."""
    await leaves_and_measures(tmp_path, streams_one, "reads")


async def test_a_client_that_closes_its_sending_side_counts_as_gone(tmp_path: Path) -> None:
    """W32."""
    gone: list[float] = []

    async def watched(connection: Connection) -> None:
        await streams_one(connection)
        gone.append(await connection.closed_by_peer())

    async with Upstream(watched) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        await c.head()
        assert await c.chunk() == b"data: 1\n\n"
        c.writer.write_eof()
        await r.until(lambda: gone)
        assert await c.ended()
        await r.until(r.quiet)


async def test_eight_clients_gone_at_once(tmp_path: Path) -> None:
    """HO04, W31."""
    gone: list[float] = []

    async def watched(connection: Connection) -> None:
        await streams_one(connection)
        gone.append(await connection.closed_by_peer())

    async with Upstream(watched) as up, router(tmp_path, up.port) as r:
        clients = [await r.client() for _ in range(8)]
        for c in clients:
            c.post(BODY)
        for c in clients:
            await c.head()
        left_at = asyncio.get_running_loop().time()
        for c in clients:
            c.close()
        await r.until(lambda: len(gone) == 8)
        assert max(gone) - left_at < PROMPT_S


async def test_a_client_that_does_not_read_holds_the_engine_up_and_is_cut(tmp_path: Path) -> None:
    """W34."""
    sent = 0

    async def pouring(connection: Connection) -> None:
        nonlocal sent
        await connection.request()
        await connection.send(SSE_HEAD)
        block = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        while True:
            await connection.send(block)
            sent += len(block)

    profile = RoutingProfile(write_stall_s=0.4)
    async with Upstream(pouring) as up, router(tmp_path, up.port, profile=profile, access_log=True) as r:
        c = await r.client()
        cast(asyncio.Transport, c.writer.transport).pause_reading()
        c.post(BODY)
        await r.until(lambda: r.heard.records)
        # Kernel buffers on two hops, ours, and the scripted engine's own; not the endless stream.
        assert sent < 40_000_000
        (record,) = r.heard.records
        assert (record.status, record.code) == (499, "client_stalled")
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert (activity.in_flight, activity.broken) == (0, 0)
        c.close()


async def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    payload = b"data: " + bytes(range(97, 123)) * 100_000 + b"\n\n"
    whole = (
        SSE_HEAD + b"".join(chunk(payload[at : at + 50_000]) for at in range(0, len(payload), 50_000)) + LAST
    )
    limits = msgspec.structs.replace(QUICK, high_water_bytes=16_384)
    profile = RoutingProfile(write_stall_s=0.5)
    async with (
        Upstream(answering(whole)) as up,
        router(tmp_path, up.port, limits=limits, profile=profile) as r,
    ):
        async with await r.client() as c:
            c.post(BODY)
            await c.head()
            got = b""
            while piece := await c.chunk():
                got += piece
                await asyncio.sleep(0.002)
            assert got == payload
            # And the connections on both sides are as good as before.
            c.post(BODY)
            assert (await c.answer()).body == payload
        assert up.connections == 1


async def test_a_big_answer_to_a_slow_reader_leaves_good_connections(tmp_path: Path) -> None:
    # More than all buffers on the way, so that also the last piece finds the client's full.
    content = b'{"x":"' + b"y" * 16_000_000 + b'"}'
    limits = msgspec.structs.replace(QUICK, high_water_bytes=16_384)
    async with (
        Upstream(answering(json_answer(content))) as up,
        router(tmp_path, up.port, limits=limits) as r,
        await r.client() as c,
    ):
        for _ in range(2):
            c.post(BODY)
            await c.head()
            left = len(content)
            while left:
                piece = await asyncio.wait_for(c.reader.read(min(left, 65_536)), STEP_S)
                assert piece
                left -= len(piece)
                await asyncio.sleep(0.001)
        assert up.connections == 1
