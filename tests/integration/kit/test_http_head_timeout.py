"""M4 on the cold listeners: a request head that does not arrive in time ends its connection."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from llmgw_kit.addresses import HostPort
from llmgw_kit.listeners import bind
from llmgw_kit.telemetry import serve_http

HEAD_TIMEOUT_S = 0.3
#: Longest wait for what must come; far above the limit under test.
BOUND_S = 10.0
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _slow(_: web.Request) -> web.Response:
    await asyncio.sleep(3 * HEAD_TIMEOUT_S)
    return web.Response(text="late")


async def _echo(request: web.Request) -> web.Response:
    return web.Response(text=str(len(await request.read())))


async def _root(_: web.Request) -> web.Response:
    return web.Response(text="here")


@pytest.fixture(params=["tcp", "unix"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[socket.socket]:
    app = web.Application()
    app.add_routes([web.get("/", _root), web.get("/slow", _slow), web.post("/echo", _echo)])
    if request.param == "tcp":
        [sock] = bind(HostPort("127.0.0.1", 0), flag="--listen")
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "http.sock"))
        sock.listen(8)
    runner = await serve_http(app, [sock], head_timeout_s=HEAD_TIMEOUT_S)
    yield sock
    await runner.cleanup()


async def _connect(server: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if server.family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(server.getsockname())
    return await asyncio.open_connection(*server.getsockname()[:2])


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(BOUND_S):
            return await reader.read()
    except ConnectionError:
        # A byte of ours met the closed socket before its end of file reached us.
        return b""


async def test_a_silent_connection_is_closed(server: socket.socket) -> None:
    reader, writer = await _connect(server)
    assert await _until_closed(reader) == b""
    writer.close()


async def test_a_dripping_head_is_closed_however_often_a_byte_comes(server: socket.socket) -> None:
    reader, writer = await _connect(server)
    closed = asyncio.ensure_future(_until_closed(reader))
    writer.write(b"GET / HTTP/1.1\r\nHost: ")
    while not closed.done():
        writer.write(b"x")
        await asyncio.sleep(HEAD_TIMEOUT_S / 5)
    assert await closed == b""
    writer.close()


async def test_idle_between_two_requests_is_not_a_slow_head(server: socket.socket) -> None:
    reader, writer = await _connect(server)
    for _ in range(2):
        writer.write(REQUEST)
        async with asyncio.timeout(BOUND_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readexactly(4)
        await asyncio.sleep(2 * HEAD_TIMEOUT_S)
    # A second head that stops half-way is one.
    writer.write(REQUEST[:-2])
    assert await _until_closed(reader) == b""
    writer.close()


async def test_a_slow_handler_and_a_slow_body_are_left_alone(server: socket.socket) -> None:
    reader, writer = await _connect(server)
    writer.write(REQUEST.replace(b"/ ", b"/slow ", 1))
    async with asyncio.timeout(BOUND_S):
        assert (await reader.readuntil(b"late")).startswith(b"HTTP/1.1 200")
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
        for _ in range(4):
            await asyncio.sleep(HEAD_TIMEOUT_S / 2)
            writer.write(b"b")
        assert (await reader.readuntil(b"\r\n\r\n4")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_changed_limit_holds_for_the_next_head() -> None:
    app = web.Application()
    app.add_routes([web.get("/", _root)])
    [sock] = bind(HostPort("127.0.0.1", 0), flag="--listen")
    limits_s = [3600.0]
    runner = await serve_http(app, [sock], head_timeout_s=lambda: limits_s[-1])
    reader, writer = await _connect(sock)
    writer.write(REQUEST)
    await reader.readuntil(b"here")
    limits_s.append(HEAD_TIMEOUT_S)
    # The same connection: its next head is under the new limit.
    writer.write(b"GET / HT")
    assert await _until_closed(reader) == b""
    writer.close()
    await runner.cleanup()
