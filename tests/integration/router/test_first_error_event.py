"""Engines that answer 200 and then say that they failed (HO02, W27)."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from .harness import BODY, QUICK, router
from .upstream import LAST, SSE_HEAD, Connection, Script, Upstream, answering, chunk

GOOD = b'data: {"id":"c","choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'


def failing(error: bytes, *, done: bool = True) -> Script:
    event = b"data: " + error + b"\n\n" + (b"data: [DONE]\n\n" if done else b"")
    return answering(SSE_HEAD + chunk(event) + LAST)


def working() -> Script:
    return answering(SSE_HEAD + chunk(GOOD) + LAST)


@pytest.mark.parametrize(
    ("code", "status"),
    [(b"400", 400), (b'"422"', 422), (b"500", 500), (b"null", 502), (b'"bad_thing"', 502), (b"599", 599)],
)
async def test_an_error_as_first_event_is_a_status(tmp_path: Path, code: bytes, status: int) -> None:
    """HO02: the engine's own words, under the status that they mean."""
    error = b'{"error":{"message":"no","type":"x","param":null,"code":' + code + b"}}"
    async with (
        Upstream(failing(error)) as up,
        router(tmp_path, up.port, access_log=True) as r,
        await r.client() as c,
    ):
        for _ in range(2):
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, answer.body) == (status, error)
            assert answer.one(b"content-type") == b"application/json"
            assert answer.one(b"content-length") == b"%d" % len(error)
        await r.until(lambda: r.pool.totals()["error_events"] == 2)
        await r.until(r.quiet)
        await r.until(lambda: len(r.heard.records) == 2)
        assert {(one.status, one.code) for one in r.heard.records} == {(status, "error_event")}
    assert len(up.seen) == 2


@pytest.mark.parametrize("code", [b"500", b"503", b"429", b"401", b"null"])
async def test_another_engine_is_asked_instead(tmp_path: Path, code: bytes) -> None:
    """HO02, HO14: retried by the rule for that status, while nothing has been sent."""
    error = b'{"error":{"message":"no","code":' + code + b"}}"
    async with (
        Upstream(failing(error)) as bad,
        Upstream(working()) as good,
        router(tmp_path, bad.port, good.port) as r,
    ):
        # Each prompt has a place of its own: some are at the bad one.
        for n in range(60):
            async with await r.client() as c:
                c.post(b'{"model":"m","messages":[{"role":"user","content":"%d"}]}' % n)
                answer = await c.answer()
                assert (answer.status, answer.body) == (200, GOOD)
            if bad.seen:
                break
        await r.until(r.quiet)
        assert bad.seen


async def test_a_callers_mistake_is_not_asked_elsewhere(tmp_path: Path) -> None:
    """HO02: 4xx is about the request, and nobody is blamed."""
    error = b'{"error":{"message":"too long","code":400}}'
    async with (
        Upstream(failing(error)) as a,
        Upstream(failing(error)) as b,
        router(tmp_path, a.port, b.port) as r,
    ):
        for _ in range(6):
            async with await r.client() as c:
                c.post(BODY)
                assert (await c.answer()).status == 400
        await r.until(r.quiet)
        assert len(a.seen) + len(b.seen) == 6
        assert all(activity.failed == 0 for _, activity in r.pool.activity())


async def test_an_error_in_pieces_is_put_together(tmp_path: Path) -> None:
    async def dribbling(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        for byte in b'data: {"error":{"message":"no","code":418}}\n\n':
            await connection.send(chunk(bytes((byte,))))
            await asyncio.sleep(0.002)
        await connection.closed_by_peer()

    async with Upstream(dribbling) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        assert (await c.answer()).status == 418
        await r.until(r.quiet)


async def test_what_begins_like_an_error_and_stops_is_passed_on(tmp_path: Path) -> None:
    """HO02: held back for a second at most, and never more than one event."""
    begun = b'data: {"error":{"mess'

    async def stopping(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(begun))
        await connection.closed_by_peer()

    async with Upstream(stopping) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        began = asyncio.get_running_loop().time()
        status, _, _ = await c.head()
        assert status == 200
        assert await c.chunk() == begun
        assert asyncio.get_running_loop().time() - began < 5.0


async def test_a_stream_that_begins_as_it_should_waits_for_nothing(tmp_path: Path) -> None:
    """W18: its first bytes are passed on although the event is not complete, and so is a comment."""
    for begun in (b'data: {"id":"c","choi', b": waiting\n\n", b"event: x\ndata: {"):

        async def stopping(connection: Connection, begun: bytes = begun) -> None:
            await connection.request()
            await connection.send(SSE_HEAD + chunk(begun + b"x"))
            await connection.closed_by_peer()

        # What is held back is let go by the sweep: here there is none.
        limits = msgspec.structs.replace(QUICK, sweep_s=3600.0)
        async with (
            Upstream(stopping) as up,
            router(tmp_path, up.port, limits=limits) as r,
            await r.client() as c,
        ):
            c.post(BODY)
            await c.head()
            assert await c.chunk() == begun + b"x"


async def test_a_later_error_is_relayed_and_counted(tmp_path: Path) -> None:
    """HO02, W27: as the third event, byte for byte, and a failure in the books."""
    stream = (
        b'data: {"n":1}\n\ndata: {"n":2}\n\ndata: {"error":{"message":"x","code":500}}\n\ndata: [DONE]\n\n'
    )

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        for event in stream.split(b"\n\n")[:-1]:
            await connection.send(chunk(event + b"\n\n"))
            await asyncio.sleep(0.01)
        await connection.send(LAST)
        await connection.closed_by_peer()

    async with Upstream(script) as up, router(tmp_path, up.port, access_log=True) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert (answer.status, answer.body, answer.complete) == (200, stream, True)
        await r.until(lambda: len(r.heard.records) == 1)
        assert r.heard.records[0].code == "error_event"
        ((_, activity),) = r.pool.activity()
        assert activity.broken == 1
        await r.until(lambda: r.pool.totals()["error_events"] == 1)


async def test_other_apis_say_it_in_their_own_words(tmp_path: Path) -> None:
    """HO02 for responses and messages: what an SDK reads as an error stands in the body."""
    for path, events, kind in (
        (
            b"/v1/messages",
            b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n',
            "overloaded_error",
        ),
        (b"/v1/responses", b'event: error\ndata: {"type":"error","code":"x","message":"y"}\n\n', "error"),
    ):
        async with (
            Upstream(answering(SSE_HEAD + chunk(events) + LAST)) as up,
            router(tmp_path, up.port) as r,
            await r.client() as c,
        ):
            c.post(BODY, path=path)
            answer = await c.answer()
            assert answer.status == 502
            assert json.loads(answer.body)["error"]["type"] == kind
