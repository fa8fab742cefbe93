"""The admin listener: metrics, health, what runs, and the few things an operator may do to this one router.

On loopback by default, since it shows the inside and has no password (M8). A web page in a browser on the
same machine is no operator, whatever its name resolves to: a call that changes something and comes from any
page is refused.
"""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from llmgw_kit.errors import Denied, InvalidRequest, LlmgwError, NotFound
from llmgw_kit.telemetry import Ready, health_routes, metrics_route
from llmgw_router.adapters.admin_debug import debug_routes
from llmgw_router.adapters.admin_page import page
from llmgw_router.adapters.admin_views import requests_view, table_view
from llmgw_router.operations import Drained, Operations

_STATUS: tuple[tuple[type[LlmgwError], int], ...] = ((InvalidRequest, 400), (NotFound, 404), (Denied, 403))

_PAGES = "GET / shows what there is; /admin/config, /admin/requests, /admin/routes, /admin/workers, /metrics"


def metrics_app(registry: CollectorRegistry, refresh: Callable[[], None], ready: Ready) -> web.Application:
    """What is safe to expose: metrics and health."""
    app = web.Application()
    app.add_routes(_metrics_routes(registry, refresh, ready))
    return app


def admin_app(
    registry: CollectorRegistry, refresh: Callable[[], None], operations: Operations
) -> web.Application:
    """Everything an operator on this machine may see and do."""
    router = operations.router

    async def index(_: web.Request) -> web.Response:
        return web.Response(text=await page(operations), content_type="text/html")

    async def routes(_: web.Request) -> web.Response:
        return _json(table_view(operations))

    async def workers(_: web.Request) -> web.Response:
        return _json(router.pool.workers)

    async def config(_: web.Request) -> web.Response:
        return _json(operations.config())

    async def requests(_: web.Request) -> web.Response:
        return _json(await requests_view(operations))

    async def explain(request: web.Request) -> web.Response:
        return _json(operations.explain(request.match_info["request_id"]))

    async def drain(request: web.Request) -> web.Response:
        return _json(_drain(operations, request))

    async def reload(_: web.Request) -> web.Response:
        outcome = await operations.reload()
        return _json(outcome, status=200 if outcome.fine else 409)

    app = web.Application(middlewares=[_edge])
    app.add_routes(
        [
            *_metrics_routes(registry, refresh, router.ready),
            web.get("/", index),
            web.get("/admin/routes", routes),
            web.get("/admin/workers", workers),
            web.get("/admin/config", config),
            web.get("/admin/requests", requests),
            web.get("/admin/explain/{request_id}", explain),
            web.post("/admin/drain", drain),
            web.post("/admin/reload", reload),
            # Their names before there were others.
            web.get("/debug/table", routes),
            web.get("/debug/workers", workers),
            *debug_routes(),
        ]
    )
    return app


def _metrics_routes(
    registry: CollectorRegistry, refresh: Callable[[], None], ready: Ready
) -> list[web.RouteDef]:
    return [metrics_route(registry, before=refresh), *health_routes(ready)]


def _drain(operations: Operations, request: web.Request) -> Drained:
    """`?endpoint=ID`, `?replica=ID`, or neither for this router; `&undo` takes it back."""
    query = request.query
    unknown = sorted(set(query) - {"endpoint", "replica", "undo"})
    if unknown:
        raise InvalidRequest(
            f"unknown parameter {unknown[0]!r}; expected endpoint=ID or replica=ID, and undo to take it back"
        )
    undo = "undo" in query
    if "endpoint" in query and "replica" in query:
        raise InvalidRequest("endpoint and replica were both given; drain one thing at a time")
    if "endpoint" in query:
        return operations.drain_endpoint(query["endpoint"], undo=undo)
    if "replica" in query:
        return operations.drain_replica(query["replica"], undo=undo)
    return operations.drain_router(undo=undo)


@web.middleware
async def _edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        if request.method == "POST":
            _refuse_pages(request)
        answering: Awaitable[web.StreamResponse] = handler(request)
        return await answering
    except web.HTTPNotFound:
        return _json({"error": f"{request.path} is no page of this router", "next": [_PAGES]}, status=404)
    except web.HTTPMethodNotAllowed as e:
        asked, allowed = f"{request.method} {request.path}", ", ".join(sorted(e.allowed_methods))
        refused = _json({"error": f"{asked} is not possible", "next": [f"use {allowed}"]}, status=405)
        refused.headers["allow"] = allowed
        return refused
    except LlmgwError as e:
        status = next((number for kind, number in _STATUS if isinstance(e, kind)), 500)
        return _json({"error": e.text, "next": list(e.next_steps)}, status=status)


def _refuse_pages(request: web.Request) -> None:
    # Browsers say so with every POST; our own page has nothing to press.
    if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        raise Denied("this call came from a web page", next_steps=["use curl -X POST"])


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n",
        content_type="application/json",
        status=status,
    )
