"""Requests as clients really send them, and as attackers do."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from llmgw_router.relay.ipc import ModelRow

from .harness import BODY, CHAT, QUICK, endpoint, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer

LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"


def error_of(body: bytes) -> dict[str, object]:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return dict(error)


async def test_a_request_cut_at_every_byte(tmp_path: Path) -> None:
    raw = LINE + b"host: r\r\nx-a: 1\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        for at in range(len(raw)):
            c.send(raw[at : at + 1])
            await asyncio.sleep(0.0005)
        assert (await c.answer()).status == 200
        for at in range(1, len(raw), 5):
            c.send(raw[:at])
            await asyncio.sleep(0.001)
            c.send(raw[at:])
            assert (await c.answer()).status == 200
    assert {seen.body for seen in up.seen} == {BODY}
    assert {seen.line for seen in up.seen} == {LINE[:-2]}
    assert all(seen.one(b"x-a") == b"1" for seen in up.seen)


async def test_a_chunked_request_arrives_with_its_length(tmp_path: Path) -> None:
    """W42, HO18."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        pieces = b"".join(chunk(BODY[at : at + 5]) for at in range(0, len(BODY), 5))
        c.send(
            LINE
            + b"host: r\r\ntransfer-encoding: chunked\r\n\r\n"
            + pieces
            + b"0\r\nx-late: 1\r\nhost: other\r\n\r\n"
        )
        assert (await c.answer()).status == 200
    (seen,) = up.seen
    assert seen.body == BODY
    assert seen.one(b"content-length") == b"%d" % len(BODY)
    assert seen.all(b"transfer-encoding") == seen.all(b"x-late") == []


@pytest.mark.parametrize("size", [32_769, 1_048_577, 20_000_000])
async def test_big_bodies_pass_untouched(tmp_path: Path, size: int) -> None:
    """W43, HO19."""
    body = b'{"messages":[{"image":"' + b"A" * size + b'"}],"model":"m"}'
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(body)
        assert (await c.answer()).status == 200
    assert up.seen[0].body == body


async def test_the_body_is_never_written_anew(tmp_path: Path) -> None:
    """W44."""
    body = (
        b' {"seed": 0.10000000000000000555, "x":1,"x":2,"n":1e999, '
        b'"s":"\\ud800",\r\n "u":"\xc3\xa9", "model" : "m" } '
    )
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(body)
        assert (await c.answer()).status == 200
    assert up.seen[0].body == body


async def test_an_alias_is_spliced_in_and_nothing_else_changes(tmp_path: Path) -> None:
    async with Upstream(answering(json_answer())) as up, router(tmp_path) as r:
        await r.push([endpoint(0, up.port)], [ModelRow(name="m", aliases=("gpt-4o", "h\xe9"))])
        async with await r.client() as c:
            c.post(b'{"x":"gpt-4o", "model" :\t"gpt-4o" , "n":1.0}')
            assert (await c.answer()).status == 200
            c.post(b'{"a":{"model":"gpt-4o"},"model":"h\\u00e9"}')
            assert (await c.answer()).status == 200
    assert [seen.body for seen in up.seen] == [
        b'{"x":"gpt-4o", "model" :\t"m" , "n":1.0}',
        b'{"a":{"model":"gpt-4o"},"model":"m"}',
    ]
    assert [seen.one(b"content-length") for seen in up.seen] == [b"%d" % len(seen.body) for seen in up.seen]


async def test_refusals_keep_the_connection_and_carry_an_id(tmp_path: Path) -> None:
    """W01, W02, W05, W45, W49, HO11."""
    async with router(tmp_path, 9) as r, await r.client() as c:
        for body, status, code, param in [
            (b"{", 400, None, None),
            (b"[1]", 400, None, None),
            (b'"model"', 400, None, None),
            (b"", 400, None, None),
            (b"[" * 200_000, 400, None, None),
            (b'{"model":"m","x":"\xff"}', 400, None, None),
            (b"{}", 400, None, "model"),
            (b'{"model":7}', 400, None, "model"),
            (b'{"model":null}', 400, None, "model"),
            (b'{"model":"m","model":"m"}', 400, None, "model"),
            (b'{"model":"m","mod\\u0065l":"other"}', 400, None, "model"),
            (b'{"model":"unknown"}', 404, "model_not_found", "model"),
        ]:
            c.post(body, more=b"x-request-id: mine-1\r\n")
            answer = await c.answer()
            error = error_of(answer.body)
            assert (answer.status, error["code"], error["param"]) == (status, code, param), body[:40]
            assert error["type"] == "invalid_request_error"
            assert answer.one(b"content-type") == b"application/json"
            assert answer.one(b"x-request-id") == b"mine-1"


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"ab.c_D-1:2", True), (b"a b", False), (b"x" * 129, False), (b"\xc3\xa9", False), (b"<a>", False)],
)
async def test_request_ids(tmp_path: Path, given: bytes, kept: bool) -> None:
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY, more=b"x-request-id: %b\r\ntraceparent: 00-1-2-01\r\n" % given)
        answer = await c.answer()
    assert (answer.one(b"x-request-id") == given) is kept
    (seen,) = up.seen
    assert seen.one(b"x-request-id") == answer.one(b"x-request-id")
    assert seen.one(b"traceparent") == b"00-1-2-01"


SMUGGLING = {
    "both framings": LINE + b"host: r\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "both framings, other order": LINE
    + b"host: r\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": LINE + b"host: r\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "one length twice": LINE + b"host: r\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "a list of lengths": LINE + b"host: r\r\ncontent-length: 3, 3\r\n\r\nabc",
    "blank before the colon": LINE + b"host: r\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": LINE + b"host: r\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "another coding": LINE + b"host: r\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding in a line before": (
        LINE + b"host: r\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "chunked in two lines": (
        LINE + b"host: r\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "signed length": LINE + b"host: r\r\ncontent-length: +3\r\n\r\nabc",
    "bare LF": LINE.replace(b"\r", b"") + b"host: r\ncontent-length: 2\n\n{}",
    "bare CR": LINE + b"host: r\r\nx: a\rb\r\n\r\n",
    "folded line": LINE + b"host: r\r\nx: a\r\n b\r\n\r\n",
    "NUL": LINE + b"host: r\r\nx: a\x00b\r\n\r\n",
    "no host": LINE + b"content-length: 2\r\n\r\n{}",
    "two hosts": LINE + b"host: r\r\nhost: s\r\ncontent-length: 2\r\n\r\n{}",
    "bad chunk": LINE + b"host: r\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
    "chunk size with LF only": LINE + b"host: r\r\ntransfer-encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.7": b"POST /v1/chat/completions HTTP/3.7\r\nhost: r\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", SMUGGLING)
async def test_shapes_with_two_readings_are_refused_and_closed(tmp_path: Path, name: str) -> None:
    """W51."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.send(SMUGGLING[name] + b"GET /smuggled HTTP/1.1\r\nhost: r\r\n\r\n")
        answer = await c.answer()
        assert answer.status == 400
        assert error_of(answer.body)["type"] == "invalid_request_error"
        assert answer.one(b"connection") == b"close"
        assert answer.one(b"x-request-id")
        assert await c.ended()
    assert up.seen == []


async def test_a_length_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    """W10, HO19."""
    limits = msgspec.structs.replace(QUICK, max_body_bytes=1000)
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, limits=limits) as r:
        async with await r.client() as c:
            c.send(LINE + b"host: r\r\ncontent-length: 1001\r\n\r\n" + b"x" * 500)
            answer = await c.answer()
            assert (answer.status, error_of(answer.body)["code"]) == (413, "request_too_large")
            assert answer.one(b"connection") == b"close"
            assert await c.ended()
        async with await r.client() as c:
            c.send(LINE + b"host: r\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 600) * 2)
            assert (await c.answer()).status == 413
            assert await c.ended()
        async with await r.client() as c:
            c.post(b'{"model":"m","x":"%b"}' % (b"x" * (1000 - 20)))
            assert (await c.answer()).status == 200


async def test_a_refusal_reaches_a_client_that_is_still_sending(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, max_body_bytes=1000)
    async with router(tmp_path, 9, limits=limits) as r, await r.client() as c:
        # More than all socket buffers on the way: an early close would lose the answer in a reset.
        c.send(LINE + b"host: r\r\ncontent-length: 30000000\r\n\r\n" + b"x" * 8_000_000)
        assert (await c.answer()).status == 413


async def test_heads_over_the_limit(tmp_path: Path) -> None:
    """W53."""
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        for head in (
            b"x-big: " + b"a" * 40_000 + b"\r\n",
            b"".join(b"x-%d: 1\r\n" % n for n in range(200)),
        ):
            async with await r.client() as c:
                c.post(BODY, more=head)
                answer = await c.answer()
                assert (answer.status, error_of(answer.body)["code"]) == (431, "request_head_too_large")
                assert await c.ended()
        async with await r.client() as c:
            # In pieces, and never ended.
            c.send(LINE + b"x-big: ")
            for _ in range(8):
                c.send(b"a" * 8_000)
                await asyncio.sleep(0.005)
            assert (await c.answer()).status == 431
        async with await r.client() as c:
            c.post(BODY, more=b"x-trace: " + b"a" * 20_000 + b"\r\n")
            assert (await c.answer()).status == 200
            c.post(b'{"model":"m","x":"%b"}' % (b"x" * 200_000))
            assert (await c.answer()).status == 200
    assert [len(seen.body) for seen in up.seen] == [len(BODY), 200_020]


async def test_expectations(tmp_path: Path) -> None:
    """W41."""
    limits = msgspec.structs.replace(QUICK, max_body_bytes=1000)
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, limits=limits) as r:
        async with await r.client() as c:
            c.send(LINE + b"host: r\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY))
            assert (await c.head())[0] == 100
            c.send(BODY)
            assert (await c.answer()).status == 200
            assert up.seen[0].all(b"expect") == []
            c.send(LINE + b"host: r\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n")
            assert (await c.answer()).status == 413
        async with await r.client() as c:
            c.send(LINE + b"host: r\r\nexpect: tea\r\ncontent-length: 2\r\n\r\n{}")
            assert (await c.answer()).status == 417


async def test_compressed_requests_are_refused(tmp_path: Path) -> None:
    """W40."""
    async with router(tmp_path, 9) as r, await r.client() as c:
        c.post(b"\x1f\x8b\x08\x00", more=b"content-encoding: gzip\r\n")
        assert (await c.answer()).status == 415
        c.post(b'{"model":"z"}', more=b"content-encoding: identity\r\n")
        assert (await c.answer()).status == 404


@pytest.mark.parametrize("method", [b"GET", b"OPTIONS", b"HEAD", b"DELETE"])
async def test_other_methods_on_a_hot_path(tmp_path: Path, method: bytes) -> None:
    async with router(tmp_path, 9) as r, await r.client() as c:
        for _ in range(2):
            c.send(b"%b %b HTTP/1.1\r\nhost: r\r\n\r\n" % (method, CHAT))
            answer = await c.answer(to_head=method == b"HEAD")
            assert answer.status == 405
            assert answer.one(b"allow") == b"POST"


@pytest.mark.parametrize(
    "target",
    [
        b"/v1/chat/completions/",
        b"//v1//chat/completions",
        b"/v1/x/../chat/./completions",
        b"/v1/%63hat/completions",
        b"/v1/x/%2e%2e/chat/completions",
        b"http://10.0.0.1:22/v1/chat/completions",
    ],
)
async def test_every_spelling_of_a_path_is_one_path(tmp_path: Path, target: bytes) -> None:
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY, path=target + b"?a=%2F..&b")
        assert (await c.answer()).status == 200
    assert up.seen[0].line == b"POST /v1/chat/completions?a=%2F..&b HTTP/1.1"


async def test_upgrades_are_not_tunnelled(tmp_path: Path) -> None:
    """W57."""
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port) as r:
        for raw in (
            b"GET /v1/realtime HTTP/1.1\r\nhost: r\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nxyz",
            b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: r\r\n\r\n",
        ):
            async with await r.client() as c:
                c.send(raw)
                answer = await c.answer()
                assert answer.status == 501
                assert answer.one(b"connection") == b"close"
                assert await c.ended()
    assert up.seen == []


H2C = [
    b"host: r",
    b"connection: Upgrade, HTTP2-Settings",
    b"upgrade: h2c",
    b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA",
]


def offering(body: bytes, *, chunked: bool = False, more: tuple[bytes, ...] = ()) -> bytes:
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    if chunked:
        body = b"%x\r\n%b\r\n0\r\nx-trailer: 1\r\n\r\n" % (len(body), body)
    head = b"\r\n".join([b"POST /v1/chat/completions HTTP/1.1", *H2C, framing, *more])
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("size", [1, 50, 100_000])
async def test_an_offer_of_http_2_is_ignored(tmp_path: Path, size: int) -> None:
    """W57, W51: RFC 9110 section 7.8. Bodies keep their framing, and what follows is the next request."""
    bodies = [b'{"model":"m","n":%d}' % n for n in range(4)]
    sent = (
        offering(bodies[0])
        + offering(bodies[1], chunked=True)
        + b"\r\n".join([b"GET /health/none HTTP/1.1", *H2C, b"", b""])
        + b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n%b"
        % (len(bodies[2]), bodies[2])
        + offering(bodies[3], more=(b"connection: close",))
    )
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        for at in range(0, len(sent), size):
            c.send(sent[at : at + size])
        statuses = [(await c.answer()).status for _ in range(5)]
        assert [statuses[n] for n in (0, 1, 3, 4)] == [200] * 4
        assert await c.ended()
    assert [one.body for one in up.seen] == bodies
    for one in up.seen:
        assert not one.all(b"upgrade") + one.all(b"http2-settings")


@pytest.mark.parametrize(
    "more",
    [
        (b"transfer-encoding: chunked",),
        (b"content-length: 3",),
        (b"upgrade: WebSocket",),
    ],
)
async def test_an_offer_does_not_hide_what_is_refused(tmp_path: Path, more: tuple[bytes, ...]) -> None:
    """W51: two framings, two lengths; W57."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.send(offering(BODY, more=more))
        assert (await c.answer()).status == (501 if b"upgrade" in more[0] else 400)
        assert await c.ended()
    assert up.seen == []


async def test_a_transfer_encoding_stands_once(tmp_path: Path) -> None:
    """W51: of two lines the last would decide alone."""
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.send(offering(BODY, chunked=True, more=(b"transfer-encoding: chunked",)))
        assert (await c.answer()).status == 400
    assert up.seen == []


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    """W50."""

    async def echoing(connection: Connection) -> None:
        while True:
            seen = await connection.request()
            await asyncio.sleep(0.01)
            await connection.send(json_answer(seen.body))

    async with Upstream(echoing) as up, router(tmp_path, up.port) as r, await r.client() as c:
        bodies = [b'{"model":"m","n":%d}' % n for n in range(5)]
        for body in bodies:
            c.post(body)
        c.post(b'{"model":"nope"}')
        c.post(bodies[0])
        for body in bodies:
            assert (await c.answer()).body == body
        assert (await c.answer()).status == 404
        assert (await c.answer()).body == bodies[0]
        # Apart in time: while the first runs, the second waits as bytes.
        c.post(bodies[1])
        await r.until(lambda: len(up.seen) == 7)
        c.post(bodies[2])
        assert (await c.answer()).body == bodies[1]
        assert (await c.answer()).body == bodies[2]


async def test_many_pipelined_refusals_do_not_pile_up_calls(tmp_path: Path) -> None:
    async with router(tmp_path, 9) as r, await r.client() as c:
        for _ in range(3000):
            c.post(b'{"model":"nope"}')
        for _ in range(3000):
            assert (await c.answer()).status == 404


async def test_a_client_may_ask_to_close(tmp_path: Path) -> None:
    async with (
        Upstream(answering(SSE_HEAD + chunk(b"data: 1\n\n") + LAST)) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.post(BODY, more=b"connection: close\r\n")
        answer = await c.answer()
        assert answer.complete
        assert answer.one(b"connection") == b"close"
        assert await c.ended()
    assert up.seen[0].all(b"connection") == []


# --- time


async def test_slow_heads_slow_bodies_and_idle_connections(tmp_path: Path) -> None:
    """W55."""
    limits = msgspec.structs.replace(QUICK, request_head_s=0.15, request_body_idle_s=0.15, keepalive_s=0.3)
    async with Upstream(answering(json_answer())) as up, router(tmp_path, up.port, limits=limits) as r:
        async with await r.client() as silent:
            assert await silent.reader.read() == b""
        async with await r.client() as slow:
            slow.send(b"POST /v1")
            answer = await slow.answer()
            assert (answer.status, error_of(answer.body)["code"]) == (408, "request_timeout")
            assert await slow.ended()
        async with await r.client() as half:
            half.send(LINE + b"host: r\r\ncontent-length: 100\r\n\r\n{")
            assert (await half.answer()).status == 408
        async with await r.client() as kept:
            kept.post(BODY)
            assert (await kept.answer()).status == 200
            await asyncio.sleep(0.2)
            kept.post(BODY)
            assert (await kept.answer()).status == 200
            await kept.ended()


async def test_a_head_that_dribbles_is_not_forgiven(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(QUICK, request_head_s=0.2)
    async with router(tmp_path, 9, limits=limits) as r, await r.client() as c:

        async def dribble() -> None:
            for byte in LINE + b"x: " + b"a" * 500:
                c.send(bytes((byte,)))
                await asyncio.sleep(0.01)

        task = asyncio.create_task(dribble())
        assert (await c.answer()).status == 408
        task.cancel()
