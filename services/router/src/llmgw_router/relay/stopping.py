"""How a worker leaves: no new connections, an end to each kept one, and what runs is finished.

In this order: beginnings of connections are refused while handshakes in progress complete; the listener
closes; for the grace requests are served a last time; then they are refused (W16), and silent connections
end a moment later, since one that closes at once would reset what its client has just sent.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.handshakes import SETTLE_S, refuse_beginnings

if TYPE_CHECKING:
    from llmgw_router.relay.hub import Hub

#: How long a kept connection may still speak, to be refused, before it is closed.
_FAREWELL_S = 1.0


class Stopping:
    """One drain per process; a later call can only shorten it."""

    def __init__(self, hub: "Hub", listeners: list[socket.socket], end: Callable[[int], None]) -> None:
        self._hub = hub
        self._listeners = listeners
        self._end = end
        self._servers: list[asyncio.Server] = []
        self._late: list[asyncio.Task[None]] = []
        self._last: asyncio.TimerHandle | None = None

    def serving(self, servers: list[asyncio.Server]) -> None:
        """What to close when the time comes."""
        self._servers = servers

    def begin(self, deadline_s: float, grace_s: float) -> None:
        """Stop accepting; refuse requests after `grace_s`; cut what still runs at `deadline_s`."""
        hub = self._hub
        at = hub.loop.time() + deadline_s
        if self._last is not None:
            if at < self._last.when():
                self._last.cancel()
                self._last = hub.loop.call_at(at, self._deadline)
            return
        self._last = hub.loop.call_at(at, self._deadline)
        hub.draining = True
        hub.room.empty()
        refused = [refuse_beginnings(listener) for listener in self._listeners] if self._servers else []
        if refused and all(refused):
            hub.loop.call_later(min(SETTLE_S, deadline_s / 2), self._close, grace_s)
        else:
            self._close(grace_s)

    def _close(self, grace_s: float) -> None:
        hub = self._hub
        self._take_the_queue()
        for server in self._servers:
            server.close()
        hub.on_quiet = lambda: self._end(0)
        hub.loop.call_later(grace_s, self._grace_over)

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
        hub.queue.empty()
        if not hub.connections:
            self._end(0)
        else:
            hub.loop.call_later(_FAREWELL_S, self._part)

    def _part(self) -> None:
        self._hub.each_connection("parting from a connection", _end_if_silent)

    def _deadline(self) -> None:
        hub = self._hub
        hub.each_connection("cutting a connection", _cut)
        # One turn of the loop more, so that the last bytes leave.
        hub.loop.call_later(0.2, self._end, 0)


def _end_if_silent(client: ClientConnection) -> None:
    if client.current is None and client.parsing is None:
        client.end()


def _cut(client: ClientConnection) -> None:
    if client.current is not None:
        client.current.stop_upstream(errors.STOPPING, "The router stopped before the answer was complete.")
    client.end()
