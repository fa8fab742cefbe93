"""Engines that are gone, refuse or die before a byte of the answer: who is asked instead, who is blamed."""

from pathlib import Path

import pytest

from .ends import code_of, dead_port
from .harness import BODY, router
from .upstream import SSE_HEAD, Connection, Script, Upstream, answering, json_answer


async def test_a_stale_pooled_connection_is_replaced_unnoticed(tmp_path: Path) -> None:
    """W54."""

    async def closing(connection: Connection) -> None:
        # As the real engine does after each stream: keep-alive announced, socket closed.
        await connection.request()
        await connection.send(json_answer())

    async with Upstream(closing) as up, router(tmp_path, up.port) as r, await r.client() as c:
        for _ in range(20):
            c.post(BODY)
            assert (await c.answer()).status == 200
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert (activity.failed, activity.in_flight, activity.picks) == (0, 0, 20)


async def test_a_pooled_connection_that_dies_under_the_request_is_asked_again_once(tmp_path: Path) -> None:
    """W54."""

    async def second_dies(connection: Connection) -> None:
        await connection.request()
        await connection.send(json_answer())
        await connection.request()
        connection.reset()

    async with Upstream(second_dies) as up, router(tmp_path, up.port) as r, await r.client() as c:
        for _ in range(2):
            c.post(BODY)
            assert (await c.answer()).status == 200
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert activity.failed == 0
        await r.until(lambda: r.pool.totals()["retries_stale"] == 1)
        assert up.connections == 2


async def test_a_dead_endpoint_is_passed_over(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, dead_port(), up.port) as r,
        await r.client() as c,
    ):
        for _ in range(10):
            c.post(BODY)
            assert (await c.answer()).status == 200
        await r.until(r.quiet)
        dead, _ = (activity for _, activity in r.pool.activity())
        # Tried once at most before it is avoided for a second; chance may have spared it.
        assert dead.failed <= 2
        assert dead.in_flight == 0


async def test_when_nobody_is_reachable_it_is_said(tmp_path: Path) -> None:
    async with router(tmp_path, dead_port(), dead_port()) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert (answer.status, code_of(answer.body)) == (502, "upstream_unreachable")
        assert answer.one(b"x-request-id")
        await r.until(r.quiet)
        assert [activity.failed for _, activity in r.pool.activity()] == [1, 1]
        # The connection lives on.
        c.post(b'{"model":"nope"}')
        assert (await c.answer()).status == 404


async def reset_at_once(connection: Connection) -> None:
    await connection.request()
    connection.reset()


async def fin_at_once(connection: Connection) -> None:
    await connection.request()
    connection.fin()


async def empty_stream(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    connection.fin()


async def empty_chunked_stream(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD)
    connection.fin()


async def half_a_head(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    connection.fin()


@pytest.mark.parametrize(
    "script", [reset_at_once, fin_at_once, empty_stream, empty_chunked_stream, half_a_head]
)
async def test_without_a_byte_of_body_another_endpoint_is_asked_once(tmp_path: Path, script: Script) -> None:
    """W28."""
    async with (
        Upstream(script) as bad,
        Upstream(answering(json_answer())) as good,
        router(tmp_path, bad.port, good.port) as r,
    ):
        while not bad.seen:
            async with await r.client() as c:
                c.post(BODY)
                assert (await c.answer()).status == 200
    async with (
        Upstream(script) as one,
        Upstream(script) as two,
        Upstream(script) as three,
        router(tmp_path, one.port, two.port, three.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
        assert (answer.status, code_of(answer.body)) == (502, "upstream_unreachable")
        # Generation is dear: sent twice, not to everybody.
        assert len(one.seen) + len(two.seen) + len(three.seen) == 2


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable"])
async def test_a_busy_engine_is_left_for_another_until_it_said(tmp_path: Path, status: bytes) -> None:
    full = answering(json_answer(b'{"error":"full"}', status=status, more=b"retry-after: 30\r\n"))
    async with (
        Upstream(full) as busy,
        Upstream(answering(json_answer())) as idle,
        router(tmp_path, busy.port, idle.port) as r,
        await r.client() as c,
    ):
        for _ in range(20):
            c.post(BODY)
            assert (await c.answer()).status == 200
        # Asked once at most, and nobody's failure.
        assert len(busy.seen) <= 1
        await r.until(r.quiet)
        assert [activity.failed for _, activity in r.pool.activity()] == [0, 0]


async def test_ho14_when_all_are_busy_the_last_one_speaks(tmp_path: Path) -> None:
    full = answering(json_answer(b'{"error":"full"}', status=b"429 Too Many", more=b"retry-after: 7\r\n"))
    async with (
        Upstream(full) as one,
        Upstream(full) as two,
        router(tmp_path, one.port, two.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
        assert (answer.status, answer.body) == (429, b'{"error":"full"}')
        assert answer.one(b"retry-after") == b"7"
        assert (len(one.seen), len(two.seen)) == (1, 1)
        await r.until(r.quiet)


async def test_ho10_when_all_asked_to_be_left_alone_it_is_said_how_long(tmp_path: Path) -> None:
    """W12."""
    full = answering(json_answer(status=b"429 Too Many", more=b"retry-after: 7\r\n"))
    fuller = answering(json_answer(status=b"503 Busy", more=b"retry-after: 40\r\n"))
    async with (
        Upstream(full) as one,
        Upstream(fuller) as two,
        router(tmp_path, one.port, two.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        assert (await c.answer()).status in (429, 503)
        c.post(BODY)
        answer = await c.answer()
        # Ours to fix, not the caller's rate; the earliest of the two, the same number in both places.
        assert (answer.status, code_of(answer.body)) == (503, "no_replica_available")
        seconds = int(answer.one(b"retry-after"))
        assert 6 <= seconds <= 7
        assert f"asked again in {seconds} s".encode() in answer.body
        assert (len(one.seen), len(two.seen)) == (1, 1)


async def test_busy_without_a_time_is_asked_again(tmp_path: Path) -> None:
    full = answering(json_answer(b'{"error":"full"}', status=b"429 Too Many"))
    async with Upstream(full) as one, router(tmp_path, one.port) as r, await r.client() as c:
        for _ in range(3):
            c.post(BODY)
            assert (await c.answer()).status == 429
        assert len(one.seen) == 3
