"""How this node meets mirrors and other nodes: sessions towards them, listeners for them, TLS on both."""

import asyncio
import contextlib
import random
import socket
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from llmgw_agent.adapters.fetching_pieces import InPieces
from llmgw_agent.adapters.hub_port import BODY_MOST, HubPort
from llmgw_agent.adapters.mirror_client import MirrorClient
from llmgw_agent.adapters.piece_client import PieceClient
from llmgw_agent.adapters.sharing import Sharing
from llmgw_agent.adapters.swarming import Peering
from llmgw_agent.adapters.weights_store import WeightsStore
from llmgw_agent.settings import AgentSettings
from llmgw_kit import listeners, telemetry
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, StartupError
from llmgw_kit.tls_watch import Side, WatchedTls, client_tls

_FILES = "mirror_tls_ca, mirror_tls_cert, mirror_tls_key"


@dataclass(frozen=True)
class Edges:
    """`mirrors` and `peers` are sessions. TLS files are read when this is made, and looked at again later."""

    mirrors: aiohttp.ClientSession
    peers: aiohttp.ClientSession
    peer_server: WatchedTls | None
    watched: tuple[WatchedTls, ...]
    peer_sockets: list[socket.socket]
    hub_sockets: list[socket.socket]

    def client(self) -> MirrorClient:
        """Whole files."""
        return MirrorClient(self.mirrors)

    def tasks(self, clock: Clock) -> list["asyncio.Task[None]"]:
        """What takes up replaced TLS files."""
        return [
            asyncio.create_task(one.watch(clock.sleep), name="mirror's tls files") for one in self.watched
        ]


async def open_edges(settings: AgentSettings, stack: contextlib.AsyncExitStack) -> Edges:
    """Bind, and read TLS files. Raises StartupError."""
    client = client_tls(
        ca=settings.mirror_tls_ca,
        cert=settings.mirror_tls_cert,
        key=settings.mirror_tls_key,
        what="mirror_tls",
    )
    peer = server = None
    if client is not None:
        try:
            # Nodes are met at whatever address they have: a certificate says that one is ours, not where.
            peer = WatchedTls(settings.mirror_tls, Side.CLIENT, what=_FILES, check_names=False)
            if settings.peer_address is not None:
                server = WatchedTls(settings.mirror_tls, Side.SERVER, what=f"peer_listen, {_FILES}")
        except InvalidRequest as e:
            raise StartupError(e.text, next_steps=e.next_steps) from None
    peer_sockets = (
        listeners.bind(settings.peer_address, flag="--peer-listen") if settings.peer_address else []
    )
    hub_sockets = listeners.bind(settings.hub_address, flag="--hub-listen") if settings.hub_address else []
    for sock in (*peer_sockets, *hub_sockets):
        stack.callback(sock.close)
    mirrors = await stack.enter_async_context(_session(client))
    peers = await stack.enter_async_context(_session(peer))
    watched = tuple(one for one in (client, peer, server) if one is not None)
    return Edges(mirrors, peers, server, watched, peer_sockets, hub_sockets)


def in_pieces(
    settings: AgentSettings, edges: Edges, clock: Clock, host: str
) -> tuple[InPieces, Sharing | None]:
    """`host`: where other nodes reach this one."""
    sharing, url = None, None
    if settings.peers and settings.peer_address is not None:
        sharing = Sharing(clock, uploads=settings.peer_uploads, bytes_s=settings.peer_upload_limit)
        port = edges.peer_sockets[0].getsockname()[1]
        # An address that stands for every one is none to be reached by.
        given = settings.peer_address.host
        reached = HostPort(host if given in ("*", "0.0.0.0", "::") else given, port)
        url = f"{'http' if edges.peer_server is None else 'https'}://{reached}"
    client = PieceClient(edges.mirrors, edges.peers)
    return InPieces(client, clock, random.random, Peering(settings.peers, url), sharing), sharing


async def serve_edges(
    settings: AgentSettings, edges: Edges, sharing: Sharing | None, store: WeightsStore,
    stack: contextlib.AsyncExitStack,
) -> None:  # fmt: skip
    """Open what is configured to nodes and to this machine's clients."""
    if sharing is not None:
        app = web.Application(client_max_size=1 << 16)
        app.add_routes(sharing.routes())
        tls = None if edges.peer_server is None else edges.peer_server.context
        runner = await telemetry.serve_http(app, edges.peer_sockets, tls=tls)
        stack.push_async_callback(runner.cleanup)
    if settings.hub_address is not None:
        port = HubPort(edges.mirrors, settings.mirrors, store)
        app = web.Application(client_max_size=BODY_MOST)
        app.add_routes(port.routes())
        runner = await telemetry.serve_http(app, edges.hub_sockets)
        stack.push_async_callback(runner.cleanup)


def _session(tls: WatchedTls | None) -> aiohttp.ClientSession:
    # No limit of connections: a slow node must not hold up the others. Unread cookies of nobody are kept.
    connector = (
        aiohttp.TCPConnector(limit=0) if tls is None else aiohttp.TCPConnector(limit=0, ssl=tls.context)
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
