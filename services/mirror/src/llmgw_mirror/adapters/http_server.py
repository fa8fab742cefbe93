"""HTTP for the nodes: what a version consists of, and its verified files, by ranges.

    GET /v1/weights/{model}/{version}                 200 present · 503 on its way · 502 failed · 404
    GET /v1/weights/{model}/{version}/files/{path}    200 206 304 416 · 503 502 404, by this file's state

Segments are split on the raw path and unquoted one by one, so that a model's name may hold a slash.
"""

import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from llmgw_kit.errors import InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_kit.text import storable
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.core.names import check_name, check_path
from llmgw_mirror.core.versions import FileView, VersionView, WeightsState
from llmgw_mirror.service import Mirror

log = logging.getLogger(__name__)

PREFIX = "/v1/weights/"
#: How soon to ask again where nobody knows better, and at most.
RETRY_USUAL_S, RETRY_MOST_S = 2, 30


class WeightsHttp:
    """The handlers."""

    def __init__(self, mirror: Mirror, answers: FileAnswers) -> None:
        self._mirror = mirror
        self._answers = answers

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PREFIX + "{rest:.*}", self.handle)]  # also HEAD

    async def handle(self, request: web.Request) -> web.StreamResponse:
        segments = request.rel_url.raw_path.removeprefix(PREFIX).split("/")
        names = [unquoted(segment) for segment in segments]
        if len(names) < 2 or (len(names) > 2 and names[2] != "files") or len(names) == 3:
            raise NotFound(
                f"{request.rel_url.raw_path[:200]} is no address here",
                code="unknown_url",
                next_steps=[f"{PREFIX}MODEL/VERSION, a slash in a name written as %2F"],
            )
        model, version = check_name("model", names[0]), check_name("version", names[1])
        view = await self._mirror.version(model, version)
        if view is None:
            raise NotFound(
                f"version {version!r} of {model!r} is not known here",
                code="unknown_version",
                next_steps=["ask for it with the Fetch call"],
            )
        if len(names) == 2:
            return _state(view)
        # A slash in a file's path may come quoted too.
        path = check_path("/".join(names[3:]))
        file = next((file for file in view.files if file.source.path == path), None)
        if file is None:
            raise NotFound(
                f"version {version!r} of {model!r} has no file {path!r}",
                code="unknown_file",
                next_steps=["see its files: GET the version's own address"],
            )
        if file.state is not WeightsState.PRESENT:
            return _not_yet(view, (file,))
        sha256, size = file.sha256, file.size_bytes
        assert sha256 is not None, "a present file has been hashed"
        assert size is not None, "a present file has been measured"
        return await self._answers.file(request, sha256, size)


def _state(view: VersionView) -> web.Response:
    if view.state is not WeightsState.PRESENT:
        return _not_yet(view, view.files)
    return web.json_response(
        {
            "model": view.model,
            "version": view.version,
            "state": view.state.value,
            "files": [
                {
                    "path": f.source.path,
                    "size": f.size_bytes,
                    "sha256": f.sha256,
                    "as_received": f.as_received,
                }
                for f in view.files
            ],
        }
    )


def _not_yet(view: VersionView, files: tuple[FileView, ...]) -> web.Response:
    told = VersionView(view.model, view.version, view.created_at, files)
    body: dict[str, Any] = {"model": view.model, "version": view.version, "state": told.state.value}
    if told.state is WeightsState.FAILED:
        failed = [file for file in files if file.state is WeightsState.FAILED]
        body["error"] = "; ".join(f"{file.source.path}: {file.error}" for file in failed)
        return web.json_response(body, status=502)
    body |= {"received_bytes": told.received_bytes, "total_bytes": told.total_bytes, "eta_s": told.eta_s}
    after = RETRY_USUAL_S if told.eta_s is None else min(RETRY_MOST_S, max(1, math.ceil(told.eta_s)))
    return web.json_response(body, status=503, headers={"Retry-After": str(after)})


def unquoted(segment: str) -> str:
    """One segment of a raw path. Raises InvalidRequest for what is not UTF-8."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"{segment[:80]!r} is not UTF-8 once unquoted",
            next_steps=["quote the bytes of UTF-8, one %XX each"],
        ) from None


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def error_edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    """LlmgwError and aiohttp's own refusals as JSON, a bug as 500 with a log line and no leak."""
    try:
        return await handler(request)
    except LlmgwError as e:
        status = next((status for kind, status in STATUS if isinstance(e, kind)), 500)
        after = e.retry_after_s if isinstance(e, Unavailable) else None
        headers = {} if after is None else {"Retry-After": str(max(1, math.ceil(after)))}
        return _error(status, e.code, e.text, e.next_steps, headers)
    except web.HTTPException as e:
        kept = {name: value for name, value in e.headers.items() if name == "Allow"}
        return _error(e.status, "unknown_url" if e.status == 404 else "refused", e.reason, (), kept)
    except (HttpProcessingError, web.RequestPayloadError) as e:
        # A body that is not what its Content-Encoding says, or that ends early.
        said = (e.message if isinstance(e, HttpProcessingError) else str(e)).strip().splitlines()
        text = f"the body cannot be read: {storable(said[0])[:200] if said else type(e).__name__}"
        # Read no further: the HTTP library would, and log what it meets as a bug.
        request.content.feed_eof()
        answer = _error(400, "invalid_request", text, ("send it as its headers say",), {})
        answer.force_close()
        return answer
    except ConnectionError:
        raise  # the client left
    except OSError as e:
        log.error("%s %s: the system says %s", request.method, request.rel_url.raw_path[:200], e)
        text = f"the mirror's system says: {e.strerror or type(e).__name__}"
        return _error(503, "disk_trouble", text, ("ask again",), {"Retry-After": str(RETRY_USUAL_S)})
    except Exception:
        log.exception("%s %s failed by a bug", request.method, request.rel_url.raw_path[:200])
        return _error(500, "internal", "internal error; the server's log has the story", (), {})


STATUS: tuple[tuple[type[LlmgwError], int], ...] = (
    (InvalidRequest, 400),
    (NotFound, 404),
    (Unavailable, 503),
)


def _error(
    status: int, code: str, message: str, next_steps: tuple[str, ...], headers: dict[str, str]
) -> web.Response:
    body = {"error": {"code": code, "message": message, "next_steps": list(next_steps)}}
    return web.Response(
        status=status,
        text=json.dumps(body, ensure_ascii=False),
        content_type="application/json",
        headers=headers,
    )
