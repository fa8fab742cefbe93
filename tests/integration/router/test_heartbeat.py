"""Streams that wait and have asked to be told so; and an engine's comments, which are no first byte (W29)."""

import asyncio
import json
from pathlib import Path

import pytest

from llmgw_router.core.config import RoutingProfile
from llmgw_router.relay.ipc import Availability, StartPhase

from .ends import code_of
from .gated import Gated, ask, busy, config, gone
from .harness import BODY, CHAT, Answer, Client, endpoint, router
from .test_cold_models import cold
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer

SSE = b"x-llmgw-heartbeat: sse\r\n"
STREAM = b'{"model":"m","messages":[],"stream":true}'
QUICK = {"heartbeat_after_s": 0.05, "heartbeat_every_s": 0.05}
EVENTS = b'data: {"id":1}\n\ndata: [DONE]\n\n'


async def streaming(connection: Connection) -> None:
    while True:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(EVENTS) + LAST)


async def first_comment(client: Client) -> tuple[list[tuple[bytes, bytes]], bytes]:
    status, _, headers = await client.head()
    assert status == 200
    return headers, await client.chunk()


async def rest(client: Client) -> bytes:
    got = b""
    while piece := await client.chunk():
        got += piece
    return got


def said(stream: bytes) -> bytes:
    """A stream without its comments."""
    return b"".join(block + b"\n\n" for block in stream.split(b"\n\n") if block and block[:1] != b":")


async def test_who_waits_for_a_cold_model_is_told_how_far_it_is_and_then_gets_the_stream(
    tmp_path: Path,
) -> None:
    async with (
        Upstream(streaming) as up,
        router(tmp_path, models=[cold()], config=config(**QUICK)) as r,
        await r.client() as c,
    ):
        c.post(STREAM, more=SSE)
        headers, comment = await first_comment(c)
        assert (b"content-type", b"text/event-stream; charset=utf-8") in headers
        assert (b"x-accel-buffering", b"no") in headers
        assert b"x-request-id" in dict(headers)
        assert comment == b": waiting for m: loading, ready in about 12 s\n\n"
        r.pool.tell_phase(StartPhase(model="m", phase="fetching", eta_s=90.0))
        async with asyncio.timeout(10):
            while b"fetching, ready in about 90 s" not in comment:
                comment = await c.chunk()
        await r.push([endpoint(0, up.port)], [cold(availability=Availability.READY)])
        assert said(await rest(c)) == EVENTS
        await gone(r)
        # What asks us is not for engines, and the connection is as good as before.
        (seen,) = up.seen
        assert not seen.all(b"x-llmgw-heartbeat")
        assert seen.body == STREAM
        c.post(STREAM)
        assert (await c.answer()).body == EVENTS


@pytest.mark.parametrize(
    ("body", "more"),
    [(BODY, SSE), (STREAM, b""), (STREAM, b"x-llmgw-heartbeat: on\r\n")],
)
async def test_nobody_else_is_sent_a_status_while_it_waits(tmp_path: Path, body: bytes, more: bytes) -> None:
    async with (
        router(tmp_path, models=[cold(hold_timeout_s=0.3)], config=config(**QUICK)) as r,
        await r.client() as c,
    ):
        c.post(body, more=more)
        answer = await c.answer()
        assert (answer.status, code_of(answer.body)) == (503, "model_loading")


async def test_an_http_1_0_client_has_no_chunks_and_gets_a_status(tmp_path: Path) -> None:
    async with (
        router(tmp_path, models=[cold(hold_timeout_s=0.3)], config=config(**QUICK)) as r,
        await r.client() as c,
    ):
        c.send(b"POST %b HTTP/1.0\r\n%bcontent-length: %d\r\n\r\n%b" % (CHAT, SSE, len(STREAM), STREAM))
        assert (await c.answer()).status == 503


async def test_a_profile_can_say_so_for_all_its_streams(tmp_path: Path) -> None:
    engine = Gated()
    profiles = (RoutingProfile(name="patient", heartbeat=True, **QUICK),)
    async with engine.upstream() as up, router(tmp_path, config=config(profiles=profiles)) as r:
        await r.push([busy(0, up.port)])
        first = await ask(r)
        await r.until(lambda: engine.running == 1)
        c = await ask(r, stream=True, more=b"x-llmgw-profile: patient\r\n")
        _, comment = await first_comment(c)
        assert comment.startswith(b": waiting for m: in line")
        first.close()
        c.close()
        await gone(r)


DIALECTS = [
    (CHAT, b'data: {"error":', "code"),
    (b"/v1/responses", b"event: error\ndata: ", "code"),
    (b"/v1/messages", b"event: error\ndata: ", None),
]


@pytest.mark.parametrize(("path", "begins", "code"), DIALECTS)
async def test_what_fails_after_the_first_comment_is_told_in_band(
    tmp_path: Path, path: bytes, begins: bytes, code: str | None
) -> None:
    async with (
        router(tmp_path, models=[cold(hold_timeout_s=0.3)], config=config(**QUICK)) as r,
        await r.client() as c,
    ):
        c.post(STREAM, path=path, more=SSE)
        await first_comment(c)
        event = said(await rest(c))
        assert event.startswith(begins)
        assert b"model_loading" in event
        assert b"Ask again in 13 s" in event
        assert await c.ended()
        await gone(r)
        await r.until(lambda: r.heard.records)
        (record,) = r.heard.records
        assert (record.status, record.code) == (200, "model_loading")


async def refusing(connection: Connection) -> None:
    content = b'{"error":{"message":"context too long","type":"invalid_request_error","code":"long"}}'
    await answering(json_answer(content, status=b"400 Bad Request"))(connection)


async def refusing_in_parts(connection: Connection) -> None:
    await connection.request()
    await connection.send(b"HTTP/1.1 500 Oops\r\ncontent-type: text/plain\r\ncontent-length: 4000\r\n\r\n")
    await connection.send(b"x" * 100)
    await connection.closed_by_peer()


async def no_stream(connection: Connection) -> None:
    await answering(json_answer(b'{"choices":[]}'))(connection)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (refusing, {"message": "context too long", "type": "invalid_request_error", "code": "long"}),
        (refusing_in_parts, {"message": "The engine answered with status 500.", "code": "engine_error"}),
        (no_stream, {"message": "The engine answered with no event stream.", "code": "engine_error"}),
    ],
)
async def test_an_engine_that_answers_otherwise_is_an_error_event(
    tmp_path: Path, script: object, told: dict[str, str]
) -> None:
    async with (
        Upstream(script) as up,  # type: ignore[arg-type]
        router(tmp_path, models=[cold()], config=config(**QUICK)) as r,
        await r.client() as c,
    ):
        c.post(STREAM, more=SSE)
        await first_comment(c)
        await r.push([endpoint(0, up.port)], [cold(availability=Availability.READY)])
        event = said(await rest(c))
        found = json.loads(event.removeprefix(b"data: "))["error"]
        assert told.items() <= found.items()
        assert await c.ended()
        await gone(r)


async def dying(connection: Connection) -> None:
    await connection.request()
    connection.fin()


async def test_another_engine_is_asked_behind_the_comments(tmp_path: Path) -> None:
    async with (
        Upstream(dying) as bad,
        Upstream(streaming) as good,
        router(tmp_path, models=[cold()], config=config(**QUICK)) as r,
        await r.client() as c,
    ):
        c.post(STREAM, more=SSE)
        await first_comment(c)
        # Only the bad one is there when it is let out; the good one comes before it has failed twice.
        await r.push([endpoint(0, bad.port), endpoint(1, good.port)], [cold(availability=Availability.READY)])
        assert said(await rest(c)) == EVENTS
        await gone(r)


async def test_a_client_that_leaves_behind_comments_leaves_nothing(tmp_path: Path) -> None:
    async with router(tmp_path, models=[cold()], config=config(**QUICK)) as r:
        c = await r.client()
        c.post(STREAM, more=SSE)
        await first_comment(c)
        c.close()
        await r.until(lambda: r.heard.unwants == ["m"])
        await gone(r)


# --- W29


async def pinging(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD)
    while True:
        # Cut inside the comment: no piece of it is a beginning.
        await connection.send(chunk(b": keep-a"))
        await asyncio.sleep(0.01)
        await connection.send(chunk(b"live " + b"x" * 300 + b"\n\n"))
        await asyncio.sleep(0.01)


async def test_comments_of_an_engine_are_no_first_byte(tmp_path: Path) -> None:
    async with (
        Upstream(pinging) as up,
        router(tmp_path, up.port, profile=RoutingProfile(first_byte_s=0.3, idle_s=0.1)) as r,
        await r.client() as c,
    ):
        c.post(STREAM)
        answer = await c.answer()
        assert answer.status == 200
        assert b": keep-alive" in answer.body
        assert b'"code":"upstream_timeout_first_byte"' in said(answer.body)
        assert answer.complete
        await r.until(r.quiet)
        await gone(r)


async def pinging_then_silent(connection: Connection) -> None:
    await connection.request()
    await connection.send(SSE_HEAD)
    for _ in range(10):
        await connection.send(chunk(b": ping " + b"x" * 300 + b"\n\n"))
        await asyncio.sleep(0.03)
    await connection.send(chunk(b"data: 1\n\n"))
    for _ in range(10):
        await connection.send(chunk(b": ping\n\n"))
        await asyncio.sleep(0.03)
    await connection.send(chunk(b"data: [DONE]\n\n") + LAST)


async def test_comments_of_an_engine_are_life(tmp_path: Path) -> None:
    async with (
        Upstream(pinging_then_silent) as up,
        router(tmp_path, up.port, profile=RoutingProfile(first_byte_s=5, idle_s=0.15)) as r,
        await r.client() as c,
    ):
        c.post(STREAM)
        answer: Answer = await c.answer()
        assert answer.complete
        assert said(answer.body) == b"data: 1\n\ndata: [DONE]\n\n"
        await gone(r)
