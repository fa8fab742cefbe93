"""The cold application: models, health, and an honest answer for paths nobody serves (W06, W48, W49)."""

import logging
import re
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from llmgw_kit.telemetry import Ready, health_routes
from llmgw_router.cold.models import model_objects
from llmgw_router.core.errors import INTERNAL, METHOD_NOT_ALLOWED, MODEL_NOT_FOUND, STARTING, Kind, body
from llmgw_router.core.keys import KeyRow, may_use
from llmgw_router.core.learned import Routes

log = logging.getLogger(__name__)

UNKNOWN_URL = Kind("unknown_url", 404, "invalid_request_error", "unknown_url")
REQUEST_ID = "x-request-id"
#: Set by relay workers, who let nobody else's pass.
KEY_ID = "x-llmgw-key"
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def cold_app(
    routes: Callable[[], Routes | None],
    ready: Ready,
    *,
    first_seen: int,
    key: Callable[[str], KeyRow | None] | None = None,
) -> web.Application:
    """`routes` gives those in force, None while there are none; `first_seen` as for model_objects. `key`
    finds the key of an id; None: no key is asked for."""

    def visible(request: web.Request, known: Routes) -> dict[str, dict[str, Any]]:
        """What the caller may use. Who calls, a relay worker has checked and told (W59)."""
        objects = model_objects(known, first_seen=first_seen)
        if key is None:
            return objects
        row = key(request.headers.get(KEY_ID, ""))
        if row is None:
            # Revoked since the worker looked: nothing is what it may use.
            return {}
        return {
            name: made for name, made in objects.items() if may_use(row, name, made.get("alias_of", name))
        }

    async def models(request: web.Request) -> web.Response:
        known = routes()
        if known is None:
            return _starting()
        objects = visible(request, known)
        return _json({"object": "list", "data": list(objects.values())})

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        known = routes()
        if known is None:
            return _starting()
        found = visible(request, known).get(name)
        if found is None:
            return refusal(MODEL_NOT_FOUND, f"The model {name!r} does not exist.")
        return _json(found)

    app = web.Application(middlewares=[_edge])
    app.add_routes(
        [
            web.get("/v1/models", models),
            # A name may hold slashes, escaped or not: organisation/model.
            web.get("/v1/models/{name:.+}", model),
            *health_routes(ready),
        ]
    )
    return app


def refusal(kind: Kind, message: str) -> web.Response:
    """An error in OpenAI's shape."""
    return web.Response(body=body(kind, message), status=kind.status, content_type="application/json")


def _starting() -> web.Response:
    # An empty list would be believed.
    answer = refusal(STARTING, "This router has no routes yet; ask again.")
    answer.headers["retry-after"] = "1"
    return answer


@web.middleware
async def _edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get(REQUEST_ID, "")
    request_id = given if _SANE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
    answer: web.StreamResponse
    try:
        answer = await handler(request)
    except web.HTTPNotFound:
        answer = refusal(UNKNOWN_URL, f"Unknown request URL: {request.method} {request.path}.")
    except web.HTTPMethodNotAllowed as e:
        allowed = ", ".join(sorted(e.allowed_methods))
        answer = refusal(
            METHOD_NOT_ALLOWED, f"{request.method} is not allowed for {request.path}; use {allowed}."
        )
        answer.headers["allow"] = allowed
    except Exception:
        log.exception("%s %s failed by a bug; request id %s", request.method, request.path, request_id)
        answer = refusal(INTERNAL, f"Internal error. Request id: {request_id}.")
    answer.headers[REQUEST_ID] = request_id
    # Which library speaks here is nobody's business.
    answer.headers["server"] = "llmgw"
    return answer


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
