"""Metrics and health pages on aiohttp. A registry per service; nothing global, so tests can look."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from llmgw_kit.http_stop import LeavingRunner, Lines

#: How long a client may take to send its request's head, on every HTTP listener (M4).
HEADER_TIMEOUT_S = 10.0
#: To one connection too many.
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 33\r\n\r\ntoo many connections; ask again\r\n"
)

Ready = Callable[[], Awaitable[tuple[bool, str]]]


def registry() -> CollectorRegistry:
    """A registry with the process's own figures."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made


def health_routes(ready: Ready) -> list[web.RouteDef]:
    """`/healthz` says that the loop turns; `/readyz` that this process can do what it promises."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        fine, why = await ready()
        return web.json_response(
            {"status": "ready" if fine else "not ready", "why": why}, status=200 if fine else 503
        )

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]


def metrics_route(registry: CollectorRegistry, *, before: Callable[[], None] | None = None) -> web.RouteDef:
    """`/metrics`, rendered off the loop: a large registry takes long.

    `before` runs on the loop first: there a collector can read what only the loop may touch."""

    async def metrics(_: web.Request) -> web.Response:
        if before is not None:
            before()
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return web.get("/metrics", metrics)


class _TimedHandler(web.RequestHandler):
    """Closes a connection whose request head does not arrive in time; aiohttp itself waits for ever.

    Counted from the accept for the first request, and from the first byte of the head for a later one:
    between two requests the keep-alive time applies. Bodies and answers are not its business."""

    __slots__ = ("_connections_most", "_head_timeout_s", "_head_timer", "_line", "_lines")

    def __init__(
        self, manager: web.Server, *, head_timeout_s: Callable[[], float], lines: Lines,
        connections_most: int | None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(manager, **kwargs)
        self._connections_most = connections_most
        self._lines = lines
        self._line: asyncio.Transport | None = None
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._line = cast("asyncio.Transport", transport)
        self._lines.made(self._line)
        if self._connections_most is not None and len(self._lines) > self._connections_most:
            self._line.write(FULL)
            self.force_close()
            return
        self._arm()

    def data_received(self, data: bytes) -> None:
        complete_before = self._request_count
        super().data_received(data)
        if self._request_count > complete_before:
            self._disarm()
        elif self._head_timer is None and self._waiter is not None and not self._waiter.done():
            # It waits for a request, and these bytes were not yet a whole head.
            self._arm()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        if self._line is not None:
            self._lines.lost(self._line)
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._head_timer = self._loop.call_later(self._head_timeout_s(), self.force_close)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _TimedSite(web.BaseSite):
    """One bound socket, TCP or unix, served by handlers with a time limit for heads."""

    __slots__ = ("_connections_most", "_head_timeout_s", "_lines", "_sock")

    def __init__(
        self, runner: LeavingRunner, sock: socket.socket, *, head_timeout_s: Callable[[], float],
        tls: ssl.SSLContext | None, connections_most: int | None,
    ) -> None:  # fmt: skip
        super().__init__(runner, ssl_context=tls)
        self._connections_most = connections_most
        self._lines = runner.lines
        self._sock = sock
        self._head_timeout_s = head_timeout_s

    @property
    def name(self) -> str:
        return f"http on {self._sock.getsockname()}"

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()

        def handler() -> _TimedHandler:
            return _TimedHandler(
                server,
                head_timeout_s=self._head_timeout_s,
                lines=self._lines,
                connections_most=self._connections_most,
                loop=server._loop,
                **server._kwargs,
            )

        # uvloop opens a given socket as what the method is for: a unix socket is no TCP server.
        if self._sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(handler, sock=self._sock)
        else:
            # Whoever sends nothing of a handshake has as long as for a head, which begins after it.
            limit_s = self._head_timeout_s() if self._ssl_context is not None else None
            self._server = await loop.create_server(
                handler, sock=self._sock, ssl=self._ssl_context, ssl_handshake_timeout=limit_s
            )


async def serve_http(
    app: web.Application,
    sockets: list[socket.socket],
    *,
    shutdown_s: float = 3.0,
    head_timeout_s: float | Callable[[], float] = HEADER_TIMEOUT_S,
    handler_cancellation: bool = False,
    tls: ssl.SSLContext | None = None,
    connections_most: int | None = None,
) -> web.AppRunner:
    """Serve an application on bound sockets, over TLS with `tls`. `cleanup()` of the result ends it.

    `head_timeout_s` limits how long a request head may take (M4); a function is asked for each head, so that
    it may change. With `handler_cancellation` a handler is cancelled when its client leaves. Connections
    above `connections_most` are told 503 and closed: whoever opens them without end takes no descriptors
    from files and from other listeners."""
    limit = head_timeout_s if callable(head_timeout_s) else lambda: head_timeout_s
    runner = LeavingRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_s=shutdown_s,
        keepalive_timeout=75.0,
        handler_cancellation=handler_cancellation,
    )
    await runner.setup()
    for sock in sockets:
        site = _TimedSite(runner, sock, head_timeout_s=limit, tls=tls, connections_most=connections_most)
        await site.start()
    return runner
