"""What this node gives to others: pieces it has seen to be right, of versions that are being fetched.

    GET /v1/peers/{model}/{version}             {"have": hex}
    GET /v1/peers/{model}/{version}/pieces/{n}  its bytes · 404 not here · 503 no room

A version is shared from the moment its fetch begins here, and on for as long as the mirror tells of nodes
that want it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp import web

from llmgw_agent.core.weights import WeightsKey
from llmgw_kit.clock import Clock
from llmgw_kit.pieces import Layout, bits_to_hex

log = logging.getLogger(__name__)

#: Longest wait in line for a piece.
LINE_S = 10.0
#: Written between two looks at the cap.
WRITE_BYTES = 256 << 10
#: A node that takes nothing for so long is cut off.
STALL_S = 30.0


@dataclass(frozen=True)
class Shared:
    """`have` and `read` are asked anew each time: pieces come in while it is shared. `read` blocks and raises
    OSError."""

    layout: Layout
    have: Callable[[], int]
    read: Callable[[int], bytes]


class Cap:
    """Bytes a second over all readers together; None: no cap."""

    def __init__(self, clock: Clock, bytes_s: int | None) -> None:
        self._clock, self._bytes_s = clock, bytes_s
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        """Wait until so many bytes may leave."""
        if self._bytes_s is None:
            return
        now = self._clock.monotonic_s()
        begins = max(now, self._free_at)
        self._free_at = begins + count / self._bytes_s
        if begins > now:
            await self._clock.sleep(begins - now)


class Sharing:
    """`uploads`: pieces sent at one time; who comes later waits in line."""

    def __init__(self, clock: Clock, *, uploads: int, bytes_s: int | None) -> None:
        self._shared: dict[tuple[str, str], Shared] = {}
        self._line, self._cap = asyncio.Semaphore(uploads), Cap(clock, bytes_s)
        self.sent_bytes = 0

    def share(self, key: WeightsKey, shared: Shared) -> None:
        """From now on, in place of what was shared of it."""
        self._shared[key.model, key.version] = shared

    def end(self, key: WeightsKey) -> None:
        """No more of it; what is being sent goes on."""
        self._shared.pop((key.model, key.version), None)

    def routes(self) -> list[web.RouteDef]:
        version = "/v1/peers/{model:[^/]+}/{version:[^/]+}"
        return [web.get(version, self._have), web.get(version + "/pieces/{piece:[0-9]{1,9}}", self._piece)]

    async def _have(self, request: web.Request) -> web.Response:
        shared = self._of(request)
        return web.json_response({"have": bits_to_hex(shared.have(), shared.layout.count)})

    async def _piece(self, request: web.Request) -> web.StreamResponse:
        shared, piece = self._of(request), int(request.match_info["piece"])
        if not shared.have() >> piece & 1:
            raise web.HTTPNotFound(text="this piece is not here")
        async with self._turn():
            try:
                data = await asyncio.to_thread(shared.read, piece)
            except OSError as e:
                # Removed in this moment, or a disk that fails: somebody else has it.
                log.warning("piece %d cannot be read: %s", piece, e)
                raise web.HTTPNotFound(text="this piece is not here any more") from None
            response = web.StreamResponse(headers={"Content-Length": str(len(data))})
            await response.prepare(request)
            for at in range(0, len(data), WRITE_BYTES):
                part = data[at : at + WRITE_BYTES]
                await self._cap.take(len(part))
                try:
                    async with asyncio.timeout(STALL_S):
                        await response.write(part)
                except (ConnectionError, TimeoutError):
                    if request.transport is not None:
                        request.transport.abort()
                    return response
                self.sent_bytes += len(part)
            await response.write_eof()
        return response

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(LINE_S):
                await self._line.acquire()
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="no room", headers={"Retry-After": "1"}) from None
        try:
            yield
        finally:
            self._line.release()

    def _of(self, request: web.Request) -> Shared:
        # Split on the raw path, so that a model's name may hold a slash.
        segments = request.rel_url.raw_path.split("/")
        shared = self._shared.get((unquote(segments[3]), unquote(segments[4])))
        if shared is None:
            raise web.HTTPNotFound(text="this version is not shared here")
        return shared
