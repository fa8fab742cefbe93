"""A mirror for the agent's tests: the HTTP contract over a few bytes, and the faults a test asks for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.integration.agent.agent_bench import LOOPBACK


@dataclass
class FakeMirror:
    """The mirror's HTTP contract over a folder of bytes, with the faults a test asks for."""

    model: str
    version: str
    files: dict[str, bytes]
    url: str = ""
    #: Answer so many listings with 503 first.
    fetching_for: int = 0
    #: The mirror's own fetch failed, for this reason.
    failed: str | None = None
    #: Listing answered in place of the real one.
    listing: Any = None
    #: Cut the first download that is longer after so many bytes: files are asked for side by side, and one
    #: that is cut behind its end was not cut.
    cut_after: int | None = None
    #: Instead of cutting, send nothing more.
    stall: bool = False
    #: Serve other bytes than listed, this often.
    corrupt: int = 0
    ranges: list[str | None] = field(default_factory=list)
    listings: int = 0

    async def list(self, request: web.Request) -> web.Response:
        """What the version consists of."""
        self.listings += 1
        if (request.match_info["model"], request.match_info["version"]) != (self.model, self.version):
            error = {"code": "unknown_version", "message": "not known here", "next_steps": []}
            return web.json_response({"error": error}, status=404)
        if self.failed is not None:
            body = {"model": self.model, "version": self.version, "state": "failed", "error": self.failed}
            return web.json_response(body, status=502)
        if self.fetching_for > 0:
            self.fetching_for -= 1
            on_its_way: dict[str, Any] = {
                "state": "fetching",
                "received_bytes": 1,
                "total_bytes": 4,
                "eta_s": None,
            }
            return web.json_response(on_its_way, status=503, headers={"Retry-After": "0"})
        files = [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in self.files.items()
        ]
        whole = {"model": self.model, "version": self.version, "state": "present", "files": files}
        return web.json_response(whole if self.listing is None else self.listing)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """One file, ranges included."""
        data = self.files[request.match_info["path"]]
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        body = data[start:]
        if self.corrupt > 0:
            self.corrupt -= 1
            body = bytes(byte ^ 0xFF for byte in body)
        headers = {"ETag": etag, "Content-Length": str(len(body))}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if asked else 200, headers=headers)
        await response.prepare(request)
        if self.cut_after is not None and len(body) > self.cut_after:
            await response.write(body[: self.cut_after])
            self.cut_after = None
            if self.stall:
                await asyncio.Event().wait()
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(body)
        await response.write_eof()
        return response


@asynccontextmanager
async def mirror(
    model: str, version: str, files: dict[str, bytes], **faults: Any
) -> AsyncIterator[FakeMirror]:
    """A mirror that listens on loopback."""
    fake = FakeMirror(model, version, files, **faults)
    app = web.Application()
    app.add_routes(
        [
            web.get("/v1/weights/{model}/{version}", fake.list),
            web.get("/v1/weights/{model}/{version}/files/{path:.+}", fake.file),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0).start()
    fake.url = f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()
