"""Nodes and a real mirror on loopback: what a swarm's tests stand on."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from llmgw_agent.adapters.fetching import FetchLimits, Weights
from llmgw_agent.adapters.fetching_pieces import InPieces
from llmgw_agent.adapters.mirror_client import MirrorClient
from llmgw_agent.adapters.piece_client import PieceClient
from llmgw_agent.adapters.sharing import Sharing
from llmgw_agent.adapters.swarming import Peering
from llmgw_agent.adapters.weights_store import WeightsStore
from llmgw_agent.core.weights import Listing, WeightsKey
from llmgw_kit import telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.listeners import bind, bound_address

KEY = WeightsKey("org/m", "v1")
LOOPBACK = "127.0.0.1"


@dataclass
class Narrow:
    """A link with so many bytes a second in all, towards one address: what a mirror's network card is."""

    towards: HostPort
    bytes_s: float
    port: int = 0
    passed: int = 0
    cut: bool = False
    _free_at: float = 0.0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def break_off(self) -> None:
        """The link is gone, for open connections and for new ones."""
        self.cut = True
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.transport.abort()
            return
        self._open.add(writer)
        to_reader, to_writer = await asyncio.open_connection(
            self.towards.host, self.towards.port, limit=1 << 16
        )
        sending = asyncio.create_task(self._pass(reader, to_writer, None))
        try:
            await self._pass(to_reader, writer, self.bytes_s)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._open.discard(writer)
            for one in (writer, to_writer):
                one.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_s: float | None
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 14):
                if bytes_s is not None:
                    self.passed += len(data)
                    begins = max(loop.time(), self._free_at)
                    self._free_at = begins + len(data) / bytes_s
                    await asyncio.sleep(begins - loop.time())
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def narrow(towards: HostPort, bytes_s: float) -> AsyncIterator[Narrow]:
    made = Narrow(towards, bytes_s)
    server = await asyncio.start_server(made._serve, LOOPBACK, 0, limit=1 << 16)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.break_off()
        await asyncio.sleep(0)


class Lying(Sharing):
    """Gives bytes that are none of its pieces."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), uploads=8, bytes_s=None)
        self.lies = 0

    def routes(self) -> list[web.RouteDef]:
        have, piece = super().routes()
        return [have, web.get(piece.path, self._lie)]

    async def _lie(self, request: web.Request) -> web.Response:
        shared, piece = self._of(request), int(request.match_info["piece"])
        self.lies += 1
        return web.Response(body=b"\0" * shared.layout.place(piece).length)


@dataclass
class Node:
    weights: Weights
    pieces: InPieces
    sharing: Sharing
    url: str
    runner: web.AppRunner
    sessions: list[aiohttp.ClientSession]

    async def fetch(self, *mirrors: str) -> Listing:
        return await self.weights.fetch(KEY, mirrors, lambda _: None)

    def files(self) -> dict[str, bytes]:
        folder = self.weights.store.folder(KEY) / "files"
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    async def die(self) -> None:
        """Its listener and its connections are gone; it says no good-bye."""
        await self.runner.cleanup()
        for session in self.sessions:
            await session.close()


@contextlib.asynccontextmanager
async def node(folder: Path, *, peers: bool = True, sharing: Sharing | None = None) -> AsyncIterator[Node]:
    """The agent's own parts, without engines."""
    clock = SystemClock()
    sharing = sharing or Sharing(clock, uploads=8, bytes_s=None)
    app = web.Application()
    app.add_routes(sharing.routes())
    sockets = bind(HostPort(LOOPBACK, 0), flag="--peer-listen")
    url = f"http://{bound_address(sockets, LOOPBACK)}"
    runner = await telemetry.serve_http(app, sockets, shutdown_s=0.1)
    sessions = [aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) for _ in range(2)]
    client = PieceClient(*sessions)
    pieces = InPieces(
        client, clock, random.Random(str(folder)).random, Peering(peers, url if peers else None), sharing
    )
    limits = FetchLimits(reserve_bytes=0, give_up_s=60.0)
    weights = Weights(WeightsStore(folder), MirrorClient(sessions[0]), clock, limits, pieces=pieces)
    made = Node(weights, pieces, sharing, url, runner, sessions)
    try:
        yield made
    finally:
        await pieces.close()
        await made.die()
