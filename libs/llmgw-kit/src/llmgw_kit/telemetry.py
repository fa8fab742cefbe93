"""Metrics and health pages on aiohttp. A registry per service; nothing global, so tests can look."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

#: How long a client may take to send its request's head, on every HTTP listener (M4).
HEADER_TIMEOUT_S = 10.0

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


def metrics_route(registry: CollectorRegistry) -> web.RouteDef:
    """`/metrics`, rendered off the loop: a large registry takes long."""

    async def metrics(_: web.Request) -> web.Response:
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return web.get("/metrics", metrics)


async def serve_http(
    app: web.Application, sockets: list[socket.socket], *, shutdown_s: float = 3.0
) -> web.AppRunner:
    """Serve an application on bound sockets. `cleanup()` of the result ends it."""
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=shutdown_s, keepalive_timeout=75.0
    )
    await runner.setup()
    for sock in sockets:
        await web.SockSite(runner, sock).start()
    return runner
