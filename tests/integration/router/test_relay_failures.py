"""Engines that are gone, die, hang or lie: what the client is told, and who is blamed."""

import asyncio
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import pytest

from .harness import QUICK, STEP_S, Client, router
from .upstream import LAST, SSE_HEAD, Connection, Script, Upstream, answering, chunk, json_answer

BODY = b'{"model":"m","messages":[]}'


def dead_port() -> int:
    """A port on which nobody listens, and that nobody gets meanwhile: bound, not listening."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    _kept.append(sock)
    return int(sock.getsockname()[1])


_kept: list[socket.socket] = []


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


async def test_a_stale_pooled_connection_is_replaced_unnoticed(tmp_path: Path) -> None:
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


async def test_when_all_are_busy_the_last_one_speaks(tmp_path: Path) -> None:
    full = answering(json_answer(b'{"error":"full"}', status=b"429 Too Many", more=b"retry-after: 7\r\n"))
    async with (
        Upstream(full) as one,
        Upstream(full) as two,
        router(tmp_path, one.port, two.port) as r,
        await r.client() as c,
    ):
        for _ in range(2):
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, answer.body) == (429, b'{"error":"full"}')
            assert answer.one(b"retry-after") == b"7"
        assert (len(one.seen), len(two.seen)) == (2, 2)
        await r.until(r.quiet)


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
    stream = b'data: {"n":1}\n\ndata: {"error":{"message":"x","code":500}}\n\ndata: {bro\n\ndata: [DONE]\n\n'
    async with (
        Upstream(answering(SSE_HEAD + chunk(stream) + LAST)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        assert (await c.answer()).body == stream


# --- deadlines


async def silent(connection: Connection) -> None:
    await connection.request()
    await connection.closed_by_peer()


async def headers_only(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD)
    await connection.closed_by_peer()


@pytest.mark.parametrize("script", [silent, headers_only])
async def test_no_first_byte_in_time(tmp_path: Path, script: Script) -> None:
    limits = msgspec.structs.replace(QUICK, first_byte_s=0.1)
    async with Upstream(script) as up, router(tmp_path, up.port, limits=limits) as r, await r.client() as c:
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
    limits = msgspec.structs.replace(QUICK, idle_s=0.1)
    async with (
        Upstream(one_event_then_silence) as up,
        router(tmp_path, up.port, limits=limits) as r,
        await r.client() as c,
    ):
        c.post(BODY)
        answer = await c.answer()
        assert answer.complete
        assert b"stream_idle_timeout" in answer.body
        assert await c.ended()


async def test_the_total_ends_a_busy_stream(tmp_path: Path) -> None:
    async def chatty(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD)
        while True:
            await connection.send(chunk(b"data: x\n\n"))
            await asyncio.sleep(0.01)

    limits = msgspec.structs.replace(QUICK, total_s=0.15)
    async with Upstream(chatty) as up, router(tmp_path, up.port, limits=limits) as r, await r.client() as c:
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
    limits = msgspec.structs.replace(QUICK, connect_s=0.1)
    try:
        async with router(tmp_path, port, limits=limits) as r, await r.client() as c:
            c.post(BODY)
            answer = await c.answer()
            assert (answer.status, code_of(answer.body)) == (504, "upstream_timeout_connect")
        async with (
            Upstream(answering(json_answer())) as up,
            router(tmp_path, port, up.port, limits=limits) as r,
            await r.client() as c,
        ):
            for _ in range(4):
                c.post(BODY)
                assert (await c.answer()).status == 200
    finally:
        for sock in (full, *stuffed):
            sock.close()


# --- clients that leave or do not read

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
    await leaves_and_measures(tmp_path, only_reads, "waits")


async def test_client_gone_in_mid_stream(tmp_path: Path) -> None:
    await leaves_and_measures(tmp_path, streams_one, "reads")


async def test_a_client_that_closes_its_sending_side_counts_as_gone(tmp_path: Path) -> None:
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
    sent = 0

    async def pouring(connection: Connection) -> None:
        nonlocal sent
        await connection.request()
        await connection.send(SSE_HEAD)
        block = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        while True:
            await connection.send(block)
            sent += len(block)

    limits = msgspec.structs.replace(QUICK, write_stall_s=0.4)
    async with Upstream(pouring) as up, router(tmp_path, up.port, limits=limits, access_log=True) as r:
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
    limits = msgspec.structs.replace(QUICK, write_stall_s=0.5, high_water_bytes=16_384)
    async with Upstream(answering(whole)) as up, router(tmp_path, up.port, limits=limits) as r:
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
