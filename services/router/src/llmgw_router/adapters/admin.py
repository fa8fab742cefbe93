"""The admin listener: metrics, health and debugging; loopback by default, since it shows the inside (M8)."""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from llmgw_kit.telemetry import Ready, health_routes, metrics_route
from llmgw_router.board import Board
from llmgw_router.supervisor.workers import WorkerPool

MOST_PROFILE_S = 60.0
_SAMPLE_S = 0.01
_MOST_FRAMES = 64

INDEX = """llmgw-router admin
/metrics                    Prometheus
/healthz /readyz            health
/debug/table                endpoints and models in force, in-flight counts; credentials masked
/debug/workers              relay workers: pid, serving, applied table
/debug/tasks                asyncio tasks of the supervisor, with stacks
/debug/profile?seconds=5    sampled stacks of the supervisor, collapsed (flamegraph.pl, speedscope)
/debug/memory               objects by type
"""


def metrics_app(registry: CollectorRegistry, refresh: Callable[[], None], ready: Ready) -> web.Application:
    """What is safe to expose: metrics and health."""
    app = web.Application()
    app.add_routes([metrics_route(registry, before=refresh), *health_routes(ready)])
    return app


def admin_app(
    registry: CollectorRegistry, refresh: Callable[[], None], ready: Ready, board: Board, pool: WorkerPool
) -> web.Application:
    """Everything an operator on this machine may see."""
    app = metrics_app(registry, refresh, ready)
    profiling = asyncio.Lock()

    async def index(_: web.Request) -> web.Response:
        return web.Response(text=INDEX)

    async def table(_: web.Request) -> web.Response:
        return _json(table_view(board, pool))

    async def workers(_: web.Request) -> web.Response:
        return _json(pool.workers)

    async def tasks(_: web.Request) -> web.Response:
        return web.Response(text=task_stacks())

    async def profile(request: web.Request) -> web.Response:
        text = request.query.get("seconds", "5")
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= MOST_PROFILE_S:
            return web.Response(
                status=400, text=f"seconds={text}: expected more than 0, at most {MOST_PROFILE_S:g}\n"
            )
        if profiling.locked():
            return web.Response(status=409, text="a profile is being taken; ask again when it is done\n")
        async with profiling:
            return web.Response(text=await asyncio.to_thread(sample_stacks, threading.get_ident(), seconds))

    async def memory(_: web.Request) -> web.Response:
        counts = Counter(type(o).__qualname__ for o in gc.get_objects())
        return web.Response(text="".join(f"{count:>9} {name}\n" for name, count in counts.most_common(50)))

    app.add_routes(
        [
            web.get("/", index),
            web.get("/debug/table", table),
            web.get("/debug/workers", workers),
            web.get("/debug/tasks", tasks),
            web.get("/debug/profile", profile),
            web.get("/debug/memory", memory),
        ]
    )
    return app


def table_view(board: Board, pool: WorkerPool) -> dict[str, Any]:
    """The table in force with what runs where; credentials are never part of it."""
    routes = board.routes
    running = {row.endpoint_id: seen for row, seen in pool.activity()}
    endpoints = []
    for row in routes.endpoints.values():
        seen = running.get(row.endpoint_id)
        shown = msgspec.to_builtins(row)
        shown.pop("slot")
        shown["credential"] = "set" if row.credential else None
        shown["in_flight"] = seen.in_flight if seen else None
        shown["picks"] = seen.picks if seen else None
        endpoints.append(shown)
    return {
        "source": board.source.value if board.source else None,
        "term": routes.term,
        "version": routes.version,
        "heard_age_s": board.heard_age_s,
        "endpoints": endpoints,
        "models": [msgspec.to_builtins(entry.row) for entry in routes.models.values()],
        "held": pool.held,
    }


def task_stacks() -> str:
    """Every task of the running loop: name, state, where it waits."""
    parts = []
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        stack = "".join(
            f"    {frame.filename}:{frame.lineno} {frame.name}\n"
            for frame in traceback.StackSummary.extract((f, f.f_lineno) for f in task.get_stack(limit=20))
        )
        parts.append(f"{task.get_name()}\n{stack}")
    return "\n".join(parts)


def sample_stacks(thread_id: int, seconds: float) -> str:
    """Stacks of one thread, 100 a second, as `outermost;...;innermost count` lines. Blocks."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        frame = sys._current_frames().get(thread_id)
        names: list[str] = []
        while frame is not None and len(names) < _MOST_FRAMES:
            code = frame.f_code
            names.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_qualname}")
            frame = frame.f_back
        counts[";".join(reversed(names))] += 1
        time.sleep(_SAMPLE_S)
    return "".join(f"{stack} {count}\n" for stack, count in counts.most_common())


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
