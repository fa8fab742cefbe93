"""What is not hot goes to the supervisor's application on its unix socket, by rules of its own."""

import asyncio
import json
import socket
from pathlib import Path

import msgspec
import pytest

from llmgw_kit.telemetry import serve_http
from llmgw_router.cold.app import cold_app
from llmgw_router.core.config import RoutingProfile
from llmgw_router.core.learned import Routes

from .harness import BODY, QUICK, router
from .upstream import LAST, SSE_HEAD, Connection, Upstream, answering, chunk, json_answer


async def test_every_other_path_is_relayed_with_its_secrets(tmp_path: Path) -> None:
    cold = Upstream(answering(json_answer(more=b"set-cookie: s=2\r\nlocation: http://h/x\r\n")))
    cold.path = str(tmp_path / "cold.sock")
    async with cold, router(tmp_path) as r, await r.client() as c:
        c.send(
            b"GET //v1/./models/?limit=3 HTTP/1.1\r\nhost: models.example\r\nauthorization: Bearer sk-1\r\n"
            b"cookie: s=1\r\naccept-encoding: gzip\r\nx-llmgw-peer: 6.6.6.6\r\n"
            b"connection: x-hop\r\nx-hop: 1\r\n\r\n"
        )
        answer = await c.answer()
    assert answer.status == 200
    assert answer.one(b"set-cookie") == b"s=2"
    assert answer.one(b"location") == b"http://h/x"
    (seen,) = cold.seen
    assert seen.line == b"GET /v1/models?limit=3 HTTP/1.1"
    assert seen.one(b"host") == b"models.example"
    assert seen.one(b"authorization") == b"Bearer sk-1"
    assert seen.one(b"cookie") == b"s=1"
    assert seen.one(b"accept-encoding") == b"gzip"
    assert seen.all(b"x-llmgw-peer") == [b"127.0.0.1"]
    assert seen.one(b"x-request-id") == answer.one(b"x-request-id")
    assert seen.all(b"content-length") == seen.all(b"x-hop") == seen.all(b"connection") == []


@pytest.mark.parametrize(
    ("raw", "line", "length"),
    [
        (b"POST /login HTTP/1.1\r\nhost: r\r\ncontent-length: 3\r\n\r\na=b", b"POST /login HTTP/1.1", [b"3"]),
        (b"POST /out HTTP/1.1\r\nhost: r\r\n\r\n", b"POST /out HTTP/1.1", [b"0"]),
        (b"DELETE /k/1%2F2 HTTP/1.1\r\nhost: r\r\n\r\n", b"DELETE /k/1%2F2 HTTP/1.1", []),
        (b"OPTIONS /v1/models HTTP/1.1\r\nhost: r\r\n\r\n", b"OPTIONS /v1/models HTTP/1.1", []),
    ],
)
async def test_methods_and_bodies(tmp_path: Path, raw: bytes, line: bytes, length: list[bytes]) -> None:
    cold = Upstream(answering(json_answer()))
    cold.path = str(tmp_path / "cold.sock")
    async with cold, router(tmp_path) as r, await r.client() as c:
        c.send(raw)
        assert (await c.answer()).status == 200
    (seen,) = cold.seen
    assert seen.line == line
    assert seen.all(b"content-length") == length


@pytest.mark.parametrize("framing", [b"content-length: 999", b"transfer-encoding: chunked"])
async def test_head_has_no_body_and_the_connection_lives(tmp_path: Path, framing: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + framing + b"\r\n\r\n"
    cold = Upstream(answering(head))
    cold.path = str(tmp_path / "cold.sock")
    async with cold, router(tmp_path) as r, await r.client() as c:
        for _ in range(3):
            c.send(b"HEAD /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
            answer = await c.answer(to_head=True)
            assert answer.status == 200
            assert answer.one(framing.partition(b":")[0]) == framing.partition(b": ")[2]


async def test_without_the_application_inference_goes_on(tmp_path: Path) -> None:
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port) as r,
        await r.client() as c,
    ):
        c.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
        answer = await c.answer()
        assert answer.status == 503
        assert answer.one(b"retry-after") == b"2"
        assert json.loads(answer.body)["error"]["code"] == "service_unavailable"
        c.post(b'{"model":"m"}')
        assert (await c.answer()).status == 200


async def test_what_is_asked_while_the_application_is_still_loading_waits_for_it(tmp_path: Path) -> None:
    """The workers serve before it is there: its socket takes connections, and inference goes on meanwhile."""
    path = str(tmp_path / "cold.sock")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(8)
    listening.setblocking(False)
    async with (
        Upstream(answering(json_answer())) as up,
        router(tmp_path, up.port, cold_socket=path) as r,
        await r.client() as c,
        await r.client() as hot,
    ):
        c.send(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
        hot.post(BODY)
        assert (await hot.answer()).status == 200
        app = cold_app(lambda: Routes(), _ready, first_seen=0)
        runner = await serve_http(app, [listening])
        answer = await c.answer()
        assert (answer.status, json.loads(answer.body)["data"]) == (200, [])
        await runner.cleanup()


async def _ready() -> tuple[bool, str]:
    return True, ""


async def test_an_application_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.closed_by_peer()

    cold = Upstream(silent)
    cold.path = str(tmp_path / "cold.sock")
    limits = msgspec.structs.replace(QUICK, cold_first_byte_s=0.1)
    async with cold, router(tmp_path, limits=limits) as r, await r.client() as c:
        c.send(b"GET /admin HTTP/1.1\r\nhost: r\r\n\r\n")
        assert (await c.answer()).status == 503


async def test_a_page_that_streams_is_never_called_idle(tmp_path: Path) -> None:
    async def slow(connection: Connection) -> None:
        await connection.request()
        await connection.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.3)
        await connection.send(chunk(b"data: 2\n\n") + LAST)

    cold = Upstream(slow)
    cold.path = str(tmp_path / "cold.sock")
    profile = RoutingProfile(idle_s=0.05)
    async with cold, router(tmp_path, profile=profile) as r, await r.client() as c:
        c.send(b"GET /admin/events HTTP/1.1\r\nhost: r\r\n\r\n")
        answer = await c.answer()
    assert (answer.body, answer.complete) == (b"data: 1\n\ndata: 2\n\n", True)


async def test_targets_without_a_sound_reading(tmp_path: Path) -> None:
    async with router(tmp_path) as r:
        for target in (b"/a%00b", b"/a%zz", b"*"):
            async with await r.client() as c:
                c.send(b"GET %b HTTP/1.1\r\nhost: r\r\n\r\n" % target)
                assert (await c.answer()).status == 400
