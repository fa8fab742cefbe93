"""Answers that end too early, or say that they failed: what the client is told."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from .harness import BODY, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk

GOOD = [b'data: {"n":%d}\n\n' % n for n in range(40)]


@dataclass(frozen=True)
class Cut:
    last: bytes
    #: How the connection ends after that.
    how: str = "fin"
    #: What of `last` is payload that the client must see.
    seen: bytes = b""


CUTS = {
    "fin between events": Cut(b""),
    "reset between events": Cut(b"", "rst"),
    "fin in a chunk": Cut(b'20\r\ndata: {"n"', seen=b'data: {"n"'),
    "reset in a chunk": Cut(b'20\r\ndata: {"n"', "rst", seen=b'data: {"n"'),
    "fin in a chunk's size": Cut(b"2"),
    "bad chunk size": Cut(b"zz\r\n", "hang"),
    "missing end of chunk": Cut(b"3\r\n: xBAD", "hang", seen=b": x"),
    "event without its blank line": Cut(chunk(b"data: x\n"), seen=b"data: x\n"),
    "event within a line": Cut(chunk(b"data: h\xc3"), seen=b"data: h\xc3"),
}


@pytest.mark.parametrize("name", CUTS)
async def test_a_stream_that_dies_ends_in_an_error_event(tmp_path: Path, name: str) -> None:
    """W24, W26, HO01."""
    cut = CUTS[name]

    async def dying(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        for event in GOOD:
            await connection.send(chunk(event))
        if cut.last:
            await asyncio.sleep(0.02)
            await connection.send(cut.last)
        await asyncio.sleep(0.05)
        if cut.how == "rst":
            connection.reset()
        elif cut.how == "fin":
            connection.fin()
        else:
            await connection.closed_by_peer()

    async with Upstream(dying) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert await c.ended()
        relayed = b"".join(GOOD) + cut.seen
        assert answer.body.startswith(relayed)
        rest = answer.body[len(relayed) :]
        event = rest.lstrip(b"\n")
        # On its own: whatever was open has been closed by a blank line.
        assert relayed.endswith(b"\n\n") or (cut.seen + rest[: len(rest) - len(event)]).endswith(b"\n\n")
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        error = json.loads(event[6:])["error"]
        assert (error["type"], error["code"], error["param"]) == (
            "upstream_error",
            "stream_interrupted",
            None,
        )
        assert b"[DONE]" not in answer.body
        assert answer.complete
        await r.until(r.quiet)
        ((_, activity),) = r.pool.activity()
        assert (activity.in_flight, activity.broken) == (0, 1)
        await r.until(lambda: r.pool.totals()["streams_broken"] == 1)
        assert len(up.seen) == 1


async def test_other_apis_are_told_in_their_own_words(tmp_path: Path) -> None:
    """W24: responses count on, messages have their own shape."""

    async def dying(connection: Connection) -> None:
        await connection.request()
        event = b'event: response.output_text.delta\ndata: {"sequence_number":41}\n\n'
        await connection.send(SSE_HEAD + chunk(event))
        await asyncio.sleep(0.03)
        connection.reset()

    async with Upstream(dying) as up, router(tmp_path, up.port) as r:
        async with await r.client() as c:
            c.post(BODY, path=b"/v1/responses")
            answer = await c.answer()
            told = answer.body.split(b"\n\n")[1]
            assert told.startswith(b"event: error\ndata: ")
            assert json.loads(told.partition(b"data: ")[2])["sequence_number"] == 42
        async with await r.client() as c:
            c.post(BODY, path=b"/v1/messages")
            answer = await c.answer()
            told = answer.body.split(b"\n\n")[1]
            assert told.startswith(b"event: error\ndata: ")
            assert json.loads(told.partition(b"data: ")[2])["type"] == "error"


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("framing", ["length", "chunked", "gzip stream"])
async def test_what_has_no_place_for_an_error_is_cut(tmp_path: Path, framing: str, how: str) -> None:
    """W24, W26: never ended as if it were whole."""
    head = {
        "length": b"content-type: application/json\r\ncontent-length: 100\r\n\r\n",
        "chunked": b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n64\r\n",
        "gzip stream": b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
        b"transfer-encoding: chunked\r\n\r\n64\r\n",
    }[framing]

    async def dying(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\n" + head + b'{"half":')
        await asyncio.sleep(0.03)
        connection.reset() if how == "rst" else connection.fin()

    async with Upstream(dying) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert answer.status == 200
        assert answer.body == b'{"half":'
        assert not answer.complete


async def test_an_http_1_0_client_sees_a_cut_as_a_reset(tmp_path: Path) -> None:
    async def dying(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n64\r\nhalf")
        await asyncio.sleep(0.03)
        connection.reset()

    async with Upstream(dying) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.send(b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY))
        await c.head()
        assert await asyncio.wait_for(c.reader.readexactly(4), 5) == b"half"
        assert not await c.ended()


@pytest.mark.parametrize(
    ("stream", "clean"),
    [(b"data: 1\n\ndata: [DONE]\n\n", True), (b"data: 1\n\n", False)],
    ids=["finished", "unfinished"],
)
async def test_where_the_close_is_the_end_only_done_tells(tmp_path: Path, stream: bytes, clean: bool) -> None:
    """W25."""

    async def closing(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + stream)
        await asyncio.sleep(0.03)
        connection.fin()

    async with Upstream(closing) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert answer.complete
        assert answer.body.startswith(stream)
        assert (answer.body == stream) is clean
        assert (b"stream_interrupted" in answer.body) is not clean


async def test_a_plain_body_ended_by_the_close_is_whole(tmp_path: Path) -> None:
    async def closing(connection: Connection) -> None:
        await connection.request()
        await connection.send(b'HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{"ok"')
        await connection.send(b":true}")
        connection.fin()

    async with Upstream(closing) as up, router(tmp_path, up.port) as r, await r.client() as c:
        for _ in range(2):
            c.post(BODY)
            answer = await c.answer()
            assert (answer.body, answer.complete) == (b'{"ok":true}', True)


async def test_an_error_event_of_the_engine_passes_as_it_is(tmp_path: Path) -> None:
    """W27, HO03."""
    stream = b'data: {"n":1}\n\ndata: {"error":{"message":"x","code":500}}\n\ndata: {bro\n\ndata: [DONE]\n\n'
    async with (
        Upstream(answering(SSE_HEAD + chunk(stream) + LAST)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        assert (await c.answer()).body == stream
