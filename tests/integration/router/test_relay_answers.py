"""Answers of engines on their way to the client: what passes, what is rebuilt, how it is framed."""

from pathlib import Path

import pytest

from .harness import BODY, CHAT, endpoint, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer

EVENTS = (
    b'data: {"choices":[{"delta":{"content":"h\xc3\xa9"}}]}\n\n: ping\n\nevent: x\nid: 1\r\n'
    b"retry: 5\rdata: a\ndata: b\n\ndata: [DONE]\n\n"
)


async def test_end_to_end_headers_pass_and_those_of_the_hop_do_not(tmp_path: Path) -> None:
    """W36, HO07."""
    more = (
        b"set-cookie: a=1\r\nSet-Cookie: b=2\r\nx-custom: yes\r\nconnection: X-Hop, keep-alive\r\n"
        b"x-hop: 1\r\nkeep-alive: timeout=5\r\nserver: uvicorn\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        b"x-llmgw-spoof: 1\r\nx-request-id: engine\r\nretry-after: 7\r\n"
    )
    async with (
        Upstream(answering(json_answer(more=more))) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
    assert answer.status == 200
    assert answer.body == b'{"ok":true}'
    assert answer.all(b"set-cookie") == [b"a=1", b"b=2"]
    assert answer.one(b"x-custom") == b"yes"
    assert answer.one(b"retry-after") == b"7"
    assert answer.one(b"content-type") == b"application/json"
    assert answer.one(b"x-request-id").startswith(b"req-")
    assert not answer.one(b"date").startswith(b"Thu, 01 Jan 1970")
    for gone in (b"x-hop", b"keep-alive", b"server", b"x-llmgw-spoof", b"connection", b"transfer-encoding"):
        assert answer.all(gone) == []


@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"404 Not Found", b"429 Too Many Requests", b"503 Busy"]
)
async def test_an_engines_own_error_is_the_answer(tmp_path: Path, status: bytes) -> None:
    """W15, HO06: also where a stream was asked for."""
    story = b'{"object":"error","message":"max_tokens is too large"}'
    async with (
        Upstream(answering(json_answer(story, status=status))) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(b'{"model":"m","stream":true}')
        answer = await c.answer()
    assert answer.status == int(status[:3])
    assert answer.body == story
    assert answer.one(b"content-type") == b"application/json"


async def test_an_event_stream_has_its_headers(tmp_path: Path) -> None:
    """W18, HO26."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(EVENTS)
    async with (
        Upstream(answering(head + EVENTS)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
    assert answer.one(b"content-type") == b"text/event-stream; charset=utf-8"
    assert answer.one(b"transfer-encoding") == b"chunked"
    assert answer.one(b"cache-control") == b"no-cache"
    assert answer.one(b"x-accel-buffering") == b"no"
    assert answer.all(b"content-length") == []
    assert (answer.body, answer.complete) == (EVENTS, True)


async def test_an_engines_own_cache_headers_stand(tmp_path: Path) -> None:
    """HO26: unless the engine set its own."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=latin-1\r\ncache-control: no-store\r\n"
        b"x-accel-buffering: yes\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    async with (
        Upstream(answering(head + chunk(EVENTS) + LAST)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
    assert answer.all(b"cache-control") == [b"no-store"]
    assert answer.all(b"x-accel-buffering") == [b"yes"]
    assert answer.one(b"content-type") == b"text/event-stream; charset=latin-1"


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_an_answer_cut_at_every_byte_arrives_whole(tmp_path: Path, framing: str) -> None:
    """W19."""
    if framing == "chunked":
        whole = SSE_HEAD + b"".join(chunk(EVENTS[at : at + 7]) for at in range(0, len(EVENTS), 7)) + LAST
        wanted = EVENTS
    else:
        wanted = b'{"text":"h\xc3\xa9"}'
        whole = json_answer(wanted)

    async def dribbling(connection: Connection) -> None:
        for _ in range(2):
            await connection.request()
            await connection.dribble(whole)

    async with Upstream(dribbling) as up, router(tmp_path, up.port) as r, await r.client() as c:
        for _ in range(2):
            c.post(BODY)
            answer = await c.answer()
            assert (answer.body, answer.complete) == (wanted, True)
        assert up.connections == 1


async def test_each_event_comes_as_it_is_written(tmp_path: Path) -> None:
    """W18."""

    async def stepping(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        for number in (2, 3):
            # Only what the client has seen lets the next one go: a lump would wait for ever.
            await gates[number].wait()
            await connection.send(chunk(b"data: %d\n\n" % number))
        await connection.send(LAST)

    import asyncio

    gates = {2: asyncio.Event(), 3: asyncio.Event()}
    async with Upstream(stepping) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        await c.head()
        assert await c.chunk() == b"data: 1\n\n"
        gates[2].set()
        assert await c.chunk() == b"data: 2\n\n"
        gates[3].set()
        assert await c.chunk() == b"data: 3\n\n"
        assert await c.chunk() == b""


async def test_a_single_line_of_700_kb_passes(tmp_path: Path) -> None:
    """W20."""
    event = b"data: " + b"x" * 700_000 + b"\n\n"
    whole = SSE_HEAD + chunk(event) + LAST
    async with Upstream(answering(whole)) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
    assert (answer.body, answer.complete) == (event, True)


async def test_interim_answers_are_not_the_answer(tmp_path: Path) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    async with (
        Upstream(answering(interim + json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        for _ in range(2):
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, answer.body) == (200, b'{"ok":true}')
            assert answer.all(b"link") == []


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_answers_without_a_body_keep_the_connection(tmp_path: Path, status: bytes) -> None:
    async with Upstream(answering(b"HTTP/1.1 %b\r\netag: x\r\n\r\n" % status)) as up:
        async with router(tmp_path, up.port) as r, await r.client() as c:
            for _ in range(2):
                c.post(BODY)
                answer = await c.answer()
                assert answer.status == int(status[:3])
                assert answer.all(b"content-length") == answer.all(b"transfer-encoding") == []
        assert up.connections == 1


async def test_compressed_although_not_asked_for_passes_as_it_is(tmp_path: Path) -> None:
    """W38, W39."""
    squeezed = b"\x1f\x8b\x08\x00not really"
    async with (
        Upstream(answering(json_answer(squeezed, more=b"content-encoding: gzip\r\n"))) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY, more=b"accept-encoding: gzip, br\r\n")
        answer = await c.answer()
    assert up.seen[0].all(b"accept-encoding") == [b"identity"]
    assert answer.body == squeezed
    assert answer.one(b"content-encoding") == b"gzip"


async def test_a_redirect_is_relayed_without_an_inside_address(tmp_path: Path) -> None:
    """W58."""
    moved = (
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://10.0.0.7:8000/v1/x\r\ncontent-length: 0\r\n\r\n"
    )
    async with Upstream(answering(moved)) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
    assert answer.status == 307
    assert answer.all(b"location") == []
    assert len(up.seen) == 1


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"403 Forbidden"])
async def test_an_engine_that_denies_us_is_not_the_callers_fault(tmp_path: Path, status: bytes) -> None:
    """W15."""
    denied = answering(json_answer(b'{"error":"key"}', status=status))
    async with Upstream(denied) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        answer = await c.answer()
        assert answer.status == 502
        assert b'"code":"upstream_denied"' in answer.body
        assert b"key" not in answer.body


async def test_a_denying_endpoint_is_stale_and_another_is_asked(tmp_path: Path) -> None:
    denied = answering(json_answer(status=b"401 Unauthorized"))
    async with Upstream(denied) as stale, Upstream(answering(json_answer())) as good:
        async with router(tmp_path, stale.port, good.port) as r, await r.client() as c:
            for _ in range(6):
                c.post(BODY)
                assert (await c.answer()).status == 200
        assert len(stale.seen) <= 1


async def test_our_credential_goes_up_and_the_callers_does_not(tmp_path: Path) -> None:
    """W37."""
    async with Upstream(answering(json_answer())) as up, router(tmp_path) as r:
        await r.push([endpoint(0, up.port, credential="engine-secret")])
        async with await r.client() as c:
            c.post(
                BODY,
                more=b"authorization: Bearer sk-caller\r\napi-key: k\r\nx-api-key: k\r\ncookie: s=1\r\n"
                b"x-llmgw-peer: me\r\nx-kept: 1\r\nconnection: x-named, keep-alive\r\n"
                b"x-named: 1\r\nte: trailers\r\n",
            )
            assert (await c.answer()).status == 200
    (seen,) = up.seen
    assert seen.line == b"POST %b HTTP/1.1" % CHAT
    assert seen.all(b"authorization") == [b"Bearer engine-secret"]
    assert seen.one(b"host") == b"127.0.0.1:%d" % up.port
    assert seen.one(b"content-length") == b"%d" % len(BODY)
    assert seen.one(b"x-kept") == b"1"
    for gone in (b"api-key", b"x-api-key", b"cookie", b"x-llmgw-peer", b"x-named", b"te", b"connection"):
        assert seen.all(gone) == []
    assert seen.body == BODY


async def test_http_1_0_clients_get_no_chunks(tmp_path: Path) -> None:
    async with (
        Upstream(answering(SSE_HEAD + chunk(EVENTS) + LAST)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.send(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (CHAT, len(BODY), BODY))
        answer = await c.answer()
    assert answer.all(b"transfer-encoding") == []
    assert answer.body == EVENTS


async def test_garbage_after_a_whole_answer_spoils_only_the_connection(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer() + b"HTTP/1.1 200 OK\r\n")) as up,
        router(tmp_path, up.port) as r,
    ):
        async with await r.client() as c:
            for _ in range(3):
                c.post(BODY)
                answer = await c.answer()
                assert (answer.status, answer.body) == (200, b'{"ok":true}')
        assert up.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=["not http", "two framings", "upgrade"],
)
async def test_an_answer_that_is_not_http_is_ours_to_report(tmp_path: Path, answer: bytes) -> None:
    """W52."""
    async with Upstream(answering(answer)) as up, router(tmp_path, up.port) as r, await r.client() as c:
        c.post(BODY)
        told = await c.answer()
    assert told.status == 502
    assert b'"code":"upstream_invalid_response"' in told.body
