"""Published content as an answer to GET and HEAD: ranges, validators, and the bytes from disk to socket."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.sending import send_body
from llmgw_mirror.core.headers import Slice, Unsatisfiable, lists_etag, requested_slice

log = logging.getLogger(__name__)


@dataclass
class Served:
    """What went out; read by the metrics page."""

    bytes: int = 0
    open: int = 0


class FileAnswers:
    """`content` tells where content lies; `threads` are for reading it; `reads` are told of every answer;
    `stall_s` ends clients that take nothing."""

    def __init__(
        self, content: Callable[[str], Path], threads: DiskThreads, reads: OpenReads, *, stall_s: float
    ) -> None:
        self._content = content
        self._threads = threads
        self._reads = reads
        self._stall_s = stall_s
        self.served = Served()

    async def file(
        self, request: web.Request, sha256: str, size: int, *, etag: str | None = None,
        more: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:  # fmt: skip
        """Answer with content that is published: whole, a range, 304 or 416, by the request's headers.

        `etag` instead of the quoted sha256; `more` headers go with every answer. Raises Unavailable."""
        etag = etag or f'"{sha256}"'
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        headers |= more or {}
        if lists_etag(request.headers.get("If-None-Match"), etag):
            return web.Response(status=304, headers={**(more or {}), "ETag": etag})
        part: Slice | None = None
        # A range is for GET alone (RFC 9110 section 14.2), and for the content it was meant for.
        if request.method == "GET" and request.headers.get("If-Range", etag).strip() == etag:
            try:
                part = requested_slice(request.headers.get("Range"), size=size)
            except Unsatisfiable:
                headers["Content-Range"] = f"bytes */{size}"
                return web.Response(status=416, headers=headers)
        start, count = (0, size) if part is None else (part.start, part.count)
        if part is not None:
            headers["Content-Range"] = part.content_range(size)
        headers["Content-Length"] = str(count)
        response = web.StreamResponse(status=200 if part is None else 206, headers=headers)
        if request.method == "HEAD" or count == 0:
            await response.prepare(request)
            return response
        return await self.send(request, response, sha256, start, count)

    async def send(
        self, request: web.Request, response: web.StreamResponse, sha256: str, start: int, count: int
    ) -> web.StreamResponse:
        """Send that part of published content as the body of a response that says how long it is.

        Raises Unavailable while nothing has been sent."""
        # Opened before the head is sent: from here on a removal does not disturb this reader.
        try:
            fd = await self._threads.run(os.open, self._content(sha256), os.O_RDONLY)
        except FileNotFoundError:
            raise Unavailable(
                "the content went away in this moment", retry_after_s=1.0, next_steps=["ask again"]
            ) from None
        except OSError as e:
            raise Unavailable(
                f"content {sha256} cannot be opened: the disk says {e.strerror or e}",
                code="disk_trouble",
                retry_after_s=2.0,
                next_steps=["see what the system logs of the mirror's disk"],
            ) from None
        self.served.open += 1
        transport = request.transport
        try:
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the client left")
            with self._reads.reading(sha256, _peer(request), fd, transport):
                await response.prepare(request)
                await send_body(
                    request, response, fd, start, count, threads=self._threads, stall_s=self._stall_s
                )
            self.served.bytes += count
        except (EOFError, OSError) as e:
            # The head has promised more than comes: only a broken connection tells the client, if one is
            # left. Clients that leave are no news; everything else is our disk's fault.
            level = logging.DEBUG if isinstance(e, ConnectionError) else logging.ERROR
            log.log(level, "content %s: %s", sha256, e)
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self.served.open -= 1
            os.close(fd)
        await response.write_eof()
        return response


def _peer(request: web.Request) -> str:
    """The name on the client's certificate, else its address."""
    certificate = request.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if names else request.remote or "unknown"
