"""What is served over aiohttp: the operators' pages, the metrics, and what the relay workers hand over.

Loaded after the workers were started: aiohttp and the metrics are half of what this process loads, and no
request waits for them but those whose answer is made here. Those wait in their listener's queue.
"""

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from llmgw_kit.telemetry import registry, serve_http
from llmgw_router.adapters.admin import admin_app, metrics_app
from llmgw_router.adapters.metrics import RouterMetrics
from llmgw_router.cold.app import cold_app
from llmgw_router.operations import Operations
from llmgw_router.reload import Reloader
from llmgw_router.router import Router


@dataclass(frozen=True, kw_only=True)
class Sockets:
    """Bound and listening since before anything else was loaded."""

    admin: list[socket.socket]
    #: Empty: no listener of its own.
    metrics: list[socket.socket]
    cold: socket.socket


async def serve_pages(
    router: Router,
    reloader: Reloader,
    sockets: Sockets,
    *,
    first: contextlib.AsyncExitStack,
    last: contextlib.AsyncExitStack,
) -> Callable[[], None]:
    """Serve all of them. `first` ends the metrics listener; `last` the cold one, then the operators' (M10).

    Returns what reads the metrics, for whoever wants them read between two scrapes."""
    metrics = RouterMetrics(router, reloader)
    figures = registry()
    figures.register(metrics)

    def head_timeout_s() -> float:
        return router.settings.request_head_s

    admin = await serve_http(
        admin_app(figures, metrics.refresh, Operations(router, reloader)),
        sockets.admin,
        head_timeout_s=head_timeout_s,
    )
    last.push_async_callback(admin.cleanup)
    cold = await serve_http(
        cold_app(
            lambda: router.board.routes if router.board.source else None,
            router.ready,
            key=router.pool.key if router.settings.guarded else None,
            first_seen=int(router.clock.unix_s()),
        ),
        [sockets.cold],
        handler_cancellation=True,
    )
    last.push_async_callback(cold.cleanup)
    alone = await serve_http(
        metrics_app(figures, metrics.refresh, router.ready), sockets.metrics, head_timeout_s=head_timeout_s
    )
    first.push_async_callback(alone.cleanup)
    return metrics.refresh
