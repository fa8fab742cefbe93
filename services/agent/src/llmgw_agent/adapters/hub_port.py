"""The Hub's read protocol on a loopback port of this node: `HF_ENDPOINT=http://127.0.0.1:PORT`.

Stock clients cannot show a certificate; this port speaks to the mirror for them, with this node's. No
credential of theirs is passed on. A file whose content this node holds, verified, is answered from its own
disk: the mirror is asked for its head alone, once for a pinned commit.
"""

import asyncio
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from llmgw_agent.adapters.weights_store import WeightsStore

log = logging.getLogger(__name__)

#: What clients say and the mirror needs. Authorization and cookies stay here.
REQUEST_HEADERS = (
    "Accept", "Content-Type", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "Range",
    "User-Agent",
)  # fmt: skip
#: Of one connection alone (RFC 9110 section 7.6.1); and what our own server says for itself.
NOT_PASSED_ON = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "date", "server"}
)
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=3.0, sock_read=60.0)
BODY_MOST = 1 << 20
CHUNK_BYTES = 1 << 20
#: A client that takes nothing for so long is cut off.
STALL_S = 60.0
#: Heads of files at a pinned commit, which never change.
HEADS_KEPT = 4096
RETRY_S = 5
_PINNED = re.compile(r"/[^/]+(?:/[^/]+)?/resolve/[0-9a-fA-F]{40}/.+")
_SHA256 = re.compile(r'"([0-9a-f]{64})"')


class HubPort:
    """`mirrors` are asked in this order; the first that can be reached answers."""

    def __init__(self, session: aiohttp.ClientSession, mirrors: Sequence[str], store: WeightsStore) -> None:
        self._session, self._mirrors, self._store = session, tuple(mirrors), store
        self._heads: OrderedDict[str, Mapping[str, str]] = OrderedDict()
        #: Bytes of files from this node's disk, and those passed on.
        self.own_bytes = self.passed_bytes = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{rest:(?s:.*)}", self.handle)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if request.method not in ("GET", "HEAD", "POST") or not (
            path.startswith("/api/") or "/resolve/" in path
        ):
            return _refusal(404, "UnknownCall", "this is no call of the Hub's read protocol")
        if request.method == "GET" and _PINNED.fullmatch(path):
            own = await self._own(request, path)
            if own is not None:
                return own
        return await self._passed_on(request)

    async def _own(self, request: web.Request, path: str) -> web.StreamResponse | None:
        """None: not on this node, or the mirror has no such file."""
        head = self._heads.get(path)
        if head is None:
            head = await self._head(request, path)
        match = _SHA256.fullmatch(head.get("ETag", "")) if head is not None else None
        if head is None or match is None:
            return None
        file = await asyncio.to_thread(self._store.find, match[1])
        return None if file is None else await self._send(request, head, file)

    async def _head(self, request: web.Request, path: str) -> Mapping[str, str] | None:
        for mirror in self._mirrors:
            try:
                async with self._session.head(
                    URL(mirror + path, encoded=True), headers=_asking(request, whole=True), timeout=TIMEOUT,
                    allow_redirects=False,
                ) as answer:  # fmt: skip
                    if answer.status != 200 or "X-Repo-Commit" not in answer.headers:
                        return None
                    kept = CIMultiDict(
                        (name, value)
                        for name, value in answer.headers.items()
                        if name.lower() not in NOT_PASSED_ON and name.lower() != "content-length"
                    )
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            self._heads[path] = kept
            while len(self._heads) > HEADS_KEPT:
                self._heads.popitem(last=False)
            return kept
        return None

    async def _send(
        self, request: web.Request, head: Mapping[str, str], file: Path
    ) -> web.StreamResponse | None:
        try:
            descriptor = await asyncio.to_thread(os.open, file, os.O_RDONLY)
        except OSError:
            return None  # removed in this moment
        try:
            size = os.fstat(descriptor).st_size
            headers = CIMultiDict(head)
            headers["Accept-Ranges"] = "bytes"
            if request.headers.get("If-None-Match") in ("*", headers["ETag"]):
                return web.Response(status=304, headers=headers)
            start, stop, ranged = _range(request, size, headers["ETag"])
            if start >= stop and ranged:
                headers["Content-Range"] = f"bytes */{size}"
                return web.Response(status=416, headers=headers)
            if ranged:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            headers["Content-Length"] = str(stop - start)
            response = web.StreamResponse(status=206 if ranged else 200, headers=headers)
            await response.prepare(request)
            for at in range(start, stop, CHUNK_BYTES):
                count = min(CHUNK_BYTES, stop - at)
                data = await asyncio.to_thread(os.pread, descriptor, count, at)
                if len(data) < count:
                    log.error("%s ended at %d of %d bytes", file, at + len(data), size)
                    return _broken(request, response)
                if not await _written(request, response, data):
                    return response
                self.own_bytes += count
            await response.write_eof()
            return response
        finally:
            os.close(descriptor)

    async def _passed_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read() if request.method == "POST" else None
        problem = "no mirror is configured"
        for mirror in self._mirrors:
            try:
                answer = await self._session.request(
                    request.method, URL(mirror + request.rel_url.raw_path_qs, encoded=True),
                    headers=_asking(request), data=body, timeout=TIMEOUT, allow_redirects=False,
                    auto_decompress=False,
                )  # fmt: skip
            except (aiohttp.ClientError, OSError, TimeoutError) as e:
                problem = f"mirror {mirror} does not answer: {e or type(e).__name__}"
                log.warning("hub port: %s", problem)
                continue
            try:
                return await self._stream(request, answer)
            finally:
                answer.close()
        return _refusal(503, "MirrorUnreachable", problem, {"Retry-After": str(RETRY_S)})

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = CIMultiDict(
            (name, value) for name, value in answer.headers.items() if name.lower() not in NOT_PASSED_ON
        )
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        if "Content-Length" not in headers and request.method == "HEAD":
            # The mirror left it out on purpose (files that newer clients refuse by their length).
            response.enable_chunked_encoding()
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        try:
            async for data in answer.content.iter_chunked(CHUNK_BYTES):
                if not await _written(request, response, data):
                    return response
                self.passed_bytes += len(data)
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            log.warning("hub port: the mirror broke off: %s", e or type(e).__name__)
            return _broken(request, response)
        await response.write_eof()
        return response


def _asking(request: web.Request, *, whole: bool = False) -> dict[str, str]:
    skipped = {"Range", "If-Range", "If-None-Match", "If-Match", "If-Modified-Since"} if whole else set[str]()
    kept = {
        name: request.headers[name]
        for name in REQUEST_HEADERS
        if name in request.headers and name not in skipped
    }
    # Links to further pages are made from what the client calls this port.
    told = {"X-Forwarded-Host": request.host, "X-Forwarded-Proto": "http", "Accept-Encoding": "identity"}
    return kept | told


def _range(request: web.Request, size: int, etag: str) -> tuple[int, int, bool]:
    """First byte, the one behind the last, and whether it is a range at all (RFC 9110 section 14.2)."""
    if request.headers.get("If-Range", etag) != etag:
        return 0, size, False
    try:
        asked = request.http_range
    except ValueError:
        return 0, size, False
    if asked.start is None:
        return 0, size, False
    if asked.start < 0:
        return max(0, size + asked.start), size, True
    return asked.start, size if asked.stop is None else min(asked.stop, size), True


async def _written(request: web.Request, response: web.StreamResponse, data: bytes) -> bool:
    """False: the client left, or takes nothing any more."""
    try:
        async with asyncio.timeout(STALL_S):
            await response.write(data)
    except (ConnectionError, TimeoutError):
        _broken(request, response)
        return False
    return True


def _broken(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    # The head has promised more than comes: only a broken connection tells the client.
    if request.transport is not None:
        request.transport.abort()
    return response


def _refusal(status: int, code: str, message: str, more: Mapping[str, str] | None = None) -> web.Response:
    said = "".join(c for c in message if c.isprintable() and ord(c) < 128)[:500]
    headers = {"X-Error-Code": code, "X-Error-Message": said} | dict(more or {})
    return web.json_response({"error": said}, status=status, headers=headers)
