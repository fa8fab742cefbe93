"""The end of a drain as clients see it: nobody let in is reset, W16, and a second word shortens it (M10)."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from llmgw_router.relay.handshakes import refuse_beginnings
from llmgw_router.supervisor.watching import watch

from .harness import BODY, Client, Router, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer


async def _endless(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
    await connection.closed_by_peer()


async def test_a_kept_connection_that_speaks_after_the_grace_is_refused_in_words_w16(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        kept, silent = await r.client(), await r.client()
        for c in (kept, silent):
            c.post(BODY)
            assert (await c.answer()).status == 200
        draining = asyncio.create_task(r.pool.drain(20.0, grace_s=0.0))
        with pytest.raises(ConnectionRefusedError):
            while True:
                _, writer = await asyncio.open_connection("127.0.0.1", r.port)
                writer.close()
        kept.post(BODY)
        answer = await kept.answer()
        assert (answer.status, answer.one(b"retry-after"), answer.one(b"connection")) == (503, b"1", b"close")
        assert b"router_stopping" in answer.body
        assert await kept.ended()
        # One that says nothing is closed in order, and the worker need not wait for its deadline.
        assert await silent.ended()
        await asyncio.wait_for(draining, 10)
        kept.close()
        silent.close()


async def test_a_second_word_cuts_what_runs_sooner(tmp_path: Path) -> None:
    async with Upstream(_endless) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        await c.head()
        assert await c.chunk() == b"data: 1\n\n"
        draining = asyncio.create_task(r.pool.drain(3600.0, grace_s=0.1))
        await asyncio.sleep(0.3)
        assert not draining.done()
        r.pool.hasten(0.2)
        assert b"router_stopping" in await c.chunk()
        assert await c.chunk() == b""
        await asyncio.wait_for(draining, 10)
        assert r.pool.workers[0].deaths == 0


async def test_a_worker_that_does_not_hear_the_second_word_is_ended_all_the_same(tmp_path: Path) -> None:
    async with Upstream(_endless) as up, router(tmp_path, up.port) as r:
        pid = r.pool.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        draining = asyncio.create_task(r.pool.drain(3600.0))
        await asyncio.sleep(0.05)
        r.pool.hasten(0.1)
        await asyncio.wait_for(draining, 10)


class Hammer:
    """Opens connections as fast as it can and asks once on each; knows what became of them."""

    def __init__(self, r: Router) -> None:
        self.r = r
        self.answered = self.refused = 0
        self.lost: list[str] = []

    async def run(self) -> None:
        port = self.r.port
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                self.refused += 1
                return
            client = Client(reader, writer)
            try:
                client.post(BODY)
                answer = await client.answer()
                assert answer.status in (200, 503)
                self.answered += 1
            except (OSError, asyncio.IncompleteReadError) as lost:
                self.lost.append(repr(lost))
            finally:
                client.close()


async def test_no_connection_that_was_let_in_is_reset_by_the_drain(tmp_path: Path) -> None:
    """The race of SO_REUSEPORT: a handshake completes between the last accept and the close."""
    async with Upstream(answering(json_answer())) as up:
        for _ in range(3):
            async with router(tmp_path, up.port, workers=2) as r:
                hammers = [Hammer(r) for _ in range(24)]
                running = [asyncio.create_task(hammer.run()) for hammer in hammers]
                await r.until(lambda h=hammers: sum(hammer.answered for hammer in h) > 200)
                await asyncio.wait_for(r.pool.drain(10.0, grace_s=0.5), 20)
                await asyncio.wait_for(asyncio.gather(*running), 20)
                assert [lost for hammer in hammers for lost in hammer.lost] == []
                assert all(hammer.refused for hammer in hammers)


def test_beginnings_are_refused_and_what_has_begun_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        before = socket.create_connection(address)
        assert refuse_beginnings(listener)
        late = socket.socket()
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.connect(address)
        accepted, _ = listener.accept()
        before.sendall(b"hello")
        assert accepted.recv(5) == b"hello"
        for sock in (before, late, accepted):
            sock.close()


async def test_a_worker_whose_loop_stands_still_is_replaced_and_its_queue_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        pid = r.pool.workers[0].pid
        assert pid is not None
        watching = asyncio.create_task(r.pool.watch(hang_s=3.0, sleep=lambda _: asyncio.sleep(0.1)))
        try:
            # One that turns is left alone, whatever it is doing.
            await asyncio.sleep(0.6)
            assert r.pool.workers[0].pid == pid
            assert r.pool.workers[0].lag_s is not None
            os.kill(pid, signal.SIGSTOP)
            async with await r.client() as c:
                c.post(BODY)
                await r.until(lambda: r.pool.workers[0].serving and r.pool.workers[0].pid not in (None, pid))
                assert (await c.answer()).status == 200
            assert (r.pool.workers[0].hangs, r.pool.workers[0].deaths) == (1, 1)
            assert f"(pid {pid}) has not turned its loop" in caplog.text
        finally:
            watching.cancel()


async def test_a_worker_that_hangs_before_it_serves_is_replaced_too(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        first = r.pool.workers[0].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await r.until(lambda: r.pool.workers[0].pid not in (None, first))
        second = r.pool.workers[0].pid
        assert second is not None
        os.kill(second, signal.SIGSTOP)
        assert not r.pool.workers[0].serving
        watching = asyncio.create_task(
            watch(
                r.pool._seats,
                r.pool._slots,
                hang_s=3600.0,
                start_s=5.0,
                sleep=lambda _: asyncio.sleep(0.05),
            )
        )
        try:
            await r.until(lambda: r.pool.workers[0].pid not in (None, first, second))
        finally:
            watching.cancel()
        await r.until(lambda: r.pool.workers[0].serving)
        assert (r.pool.workers[0].hangs, r.pool.workers[0].deaths) == (1, 2)


async def test_what_runs_is_told_by_all_workers_that_answer(tmp_path: Path) -> None:
    async def streaming(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await connection.request()
        await connection.send(LAST)

    async with Upstream(streaming) as up, router(tmp_path, up.port, workers=2) as r:
        clients = [await r.client() for _ in range(8)]
        for number, c in enumerate(clients):
            c.post(BODY, more=b"x-request-id: mine-%d\r\n" % number)
            await c.head()
            assert await c.chunk() == b"data: 1\n\n"
        now = await r.pool.running()
        assert sorted(row.request_id for _, row in now.rows) == [f"mine-{n}" for n in range(8)]
        assert {(row.model, row.endpoint_id, row.phase, row.chunks) for _, row in now.rows} == {
            ("m", "e0@1", "relaying", 1)
        }
        assert (now.left_out, now.silent) == (0, ())
        pid = r.pool.workers[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            assert (await r.pool.running(timeout_s=0.2)).silent == (1,)
        finally:
            os.kill(pid, signal.SIGCONT)
        for c in clients:
            c.close()
        await r.until(r.quiet)
        assert (await r.pool.running()).rows == ()
