"""How a worker leaves: no new connections, an end to each kept one, and what runs is finished."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.relay.client import ClientConnection

if TYPE_CHECKING:
    from llmgw_router.relay.hub import Hub


class Stopping:
    """One drain per process; a second call changes nothing."""

    def __init__(self, hub: "Hub", listeners: list[socket.socket], end: Callable[[int], None]) -> None:
        self._hub = hub
        self._listeners = listeners
        self._end = end
        self._servers: list[asyncio.Server] = []
        self._late: list[asyncio.Task[None]] = []

    def serving(self, servers: list[asyncio.Server]) -> None:
        """What to close when the time comes."""
        self._servers = servers

    def begin(self, deadline_s: float, grace_s: float) -> None:
        """Stop accepting now; refuse requests after `grace_s`; cut what still runs at `deadline_s`."""
        hub = self._hub
        if hub.draining:
            return
        hub.draining = True
        self._take_the_queue()
        for server in self._servers:
            server.close()
        hub.room.empty()
        hub.on_quiet = lambda: self._end(0)
        hub.loop.call_later(min(grace_s, deadline_s), self._grace_over)
        hub.loop.call_later(deadline_s, self._deadline)

    def _take_the_queue(self) -> None:
        # The kernel has completed these handshakes; closing the listener would reset them.
        for listener in self._listeners if self._servers else ():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    break
                sock.setblocking(False)
                self._late.append(self._hub.loop.create_task(self._adopt(sock)))

    async def _adopt(self, sock: socket.socket) -> None:
        await self._hub.loop.connect_accepted_socket(lambda: ClientConnection(self._hub), sock)

    def _grace_over(self) -> None:
        hub = self._hub
        hub.refusing = True
        for client in tuple(hub.connections):
            if client.current is None and client.parsing is None:
                client.end()
        if not hub.connections:
            self._end(0)

    def _deadline(self) -> None:
        hub = self._hub
        for client in tuple(hub.connections):
            if client.current is not None:
                client.current.stop_upstream(
                    errors.STOPPING, "The router stopped before the answer was complete."
                )
            client.end()
        # One turn of the loop more, so that the last bytes leave.
        hub.loop.call_later(0.2, self._end, 0)
