"""HTTP for nodes that fetch one version together.

    GET  /v1/weights/{model}/{version}/pieces   piece_bytes, and each file's piece hashes (null: being made)
    POST /v1/weights/{model}/{version}/peers    {}, {url, have}, {url, left: true} → some others, their pieces
    POST /v1/weights/{model}/{version}/next     {lacks} → the bytes of one piece, its number in X-Llmgw-Piece

`next` is how the mirror is a source: it sends what it has sent least often, so that each byte leaves it about
once however many nodes ask. So many at a time; who comes later waits in line, and is told 503 when it lasts.
"""

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, NotFound, Unavailable
from llmgw_kit.pieces import Layout, bits_from_hex, bits_to_hex
from llmgw_mirror.adapters.file_answer import FileAnswers
from llmgw_mirror.adapters.http_server import PREFIX, unquoted
from llmgw_mirror.adapters.piece_hashes import PieceHashes
from llmgw_mirror.core.names import check_name
from llmgw_mirror.core.swarm import SPEAK_S, SWARMS_MOST, Swarm, check_peer_url
from llmgw_mirror.core.versions import FileView, WeightsState
from llmgw_mirror.service import Mirror

#: What a version consists of is looked up so often: `next` is asked for hundreds of times a second.
LOOK_S = 5.0
#: Longest wait in line for `next`.
LINE_S = 10.0
#: To wait for hashes that are being made.
MAKING_S = 1.0


@dataclass
class _Version:
    files: tuple[FileView, ...]
    layout: Layout
    swarm: Swarm
    look_again: float


class SwarmHttp:
    """`uploads`: pieces sent at one time."""

    def __init__(
        self, mirror: Mirror, hashes: PieceHashes, answers: FileAnswers, clock: Clock, *, uploads: int,
        chance: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self._mirror, self._hashes, self._answers = mirror, hashes, answers
        self._clock, self._chance = clock, chance
        self._versions: dict[tuple[str, str], _Version] = {}
        self._line = asyncio.Semaphore(uploads)

    def routes(self) -> list[web.RouteDef]:
        """To be registered before the files' route, which takes everything."""
        version = PREFIX + "{model:[^/]+}/{version:[^/]+}"
        return [
            web.get(version + "/pieces", self.pieces),
            web.post(version + "/peers", self.peers),
            web.post(version + "/next", self.next),
        ]

    async def pieces(self, request: web.Request) -> web.Response:
        """How to check each piece."""
        (model, version), found = await self._found(request)
        files, whole = [], True
        for file in found.files:
            assert file.sha256 is not None
            assert file.size_bytes is not None
            hashes = await self._hashes.of(file.sha256, file.size_bytes)
            whole = whole and hashes is not None
            files.append(
                {
                    "path": file.source.path,
                    "size": file.size_bytes,
                    "sha256": file.sha256,
                    "pieces": hashes,
                }
            )
        body = {"model": model, "version": version, "piece_bytes": self._hashes.piece_bytes, "files": files}
        return web.json_response(body, headers={} if whole else {"Retry-After": str(math.ceil(MAKING_S))})

    async def peers(self, request: web.Request) -> web.Response:
        """A node says what it has, and hears who else is there."""
        _, found = await self._found(request)
        body, now = await _object(request), self._clock.monotonic_s()
        # A node that gives nothing to others may still take from them.
        url = None if "url" not in body else check_peer_url(body["url"])
        if url is not None and body.get("left") is True:
            found.swarm.leave(url)
            return web.json_response({"peers": [], "fetching": found.swarm.fetching(url, now=now)})
        if url is not None:
            have = bits_from_hex(body.get("have"), found.layout.count, what="have")
            found.swarm.announce(url, have, now=now)
        others = found.swarm.others(url, now=now, chance=self._chance)
        told = [
            {"url": one.url, "have": bits_to_hex(one.have, found.layout.count), "done": one.done}
            for one in others
        ]
        return web.json_response(
            {"interval_s": SPEAK_S, "peers": told, "fetching": found.swarm.fetching(url, now=now)}
        )

    async def next(self, request: web.Request) -> web.StreamResponse:
        """One of the pieces that the node lacks."""
        _, found = await self._found(request)
        lacks = bits_from_hex((await _object(request)).get("lacks"), found.layout.count, what="lacks")
        if lacks == 0:
            raise InvalidRequest("the node lacks no piece", next_steps=["ask only while pieces are lacking"])
        async with self._turn():
            piece = found.swarm.next(lacks, now=self._clock.monotonic_s(), chance=self._chance)
            assert piece is not None
            place = found.layout.place(piece)
            file = found.files[place.file]
            assert file.sha256 is not None
            return await self._send(request, piece, file.sha256, place.offset, place.length)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            # First come, first served: asyncio's semaphore keeps the order.
            async with asyncio.timeout(LINE_S):
                await self._line.acquire()
        except TimeoutError:
            raise Unavailable(
                "too many nodes wait for pieces",
                code="busy",
                retry_after_s=1.0,
                next_steps=["ask again in a moment"],
            ) from None
        try:
            yield
        finally:
            self._line.release()

    async def _send(
        self, request: web.Request, piece: int, sha256: str, offset: int, count: int
    ) -> web.StreamResponse:
        headers = {
            "Content-Length": str(count), "Content-Type": "application/octet-stream",
            "X-Llmgw-Piece": str(piece), "ETag": f'"{sha256}"',
        }  # fmt: skip
        return await self._answers.send(request, web.StreamResponse(headers=headers), sha256, offset, count)

    async def _found(self, request: web.Request) -> tuple[tuple[str, str], _Version]:
        segments = request.rel_url.raw_path.removeprefix(PREFIX).split("/")
        model, version = (
            check_name("model", unquoted(segments[0])),
            check_name("version", unquoted(segments[1])),
        )
        now, known = self._clock.monotonic_s(), self._versions.get((model, version))
        if known is not None and now < known.look_again:
            return (model, version), known
        view = await self._mirror.version(model, version)
        if view is None:
            self._versions.pop((model, version), None)
            raise NotFound(
                f"version {version!r} of {model!r} is not known here",
                code="unknown_version",
                next_steps=["what is here: llmgwctl mirror versions"],
            )
        if view.state is not WeightsState.PRESENT:
            raise Unavailable(
                f"version {version!r} of {model!r} is {view.state.value} here",
                code="not_present",
                retry_after_s=1.0,
                next_steps=["wait; how far it is: llmgwctl mirror downloads"],
            )
        # Looked up anew: of many first requests at once, one begins the swarm and the rest join it.
        known = self._versions.get((model, version))
        # In the order of the listing that nodes have: pieces are numbered by it on both sides.
        files = tuple(sorted(view.files, key=lambda file: file.source.path))
        if known is None or [one.sha256 for one in known.files] != [one.sha256 for one in files]:
            layout = Layout(self._hashes.piece_bytes, [file.size_bytes or 0 for file in files])
            known = _Version(files, layout, Swarm(layout.count), now)
            while len(self._versions) >= SWARMS_MOST:
                del self._versions[next(iter(self._versions))]
            self._versions[model, version] = known
        known.look_again = now + LOOK_S
        return (model, version), known


async def _object(request: web.Request) -> dict[str, object]:
    try:
        # JSON is UTF-8, whatever charset the request names.
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidRequest("the body is no JSON object", next_steps=["send a JSON object"])
    return body
