"""One client connection: requests are answered in order, one at a time, and nothing else.

What a client sends ahead waits as bytes. How requests are read stands in relay/arriving.py.
"""

import asyncio
import socket
import struct

from llmgw_router.relay.arriving import Arriving
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.known_heads import RequestHead, again
from llmgw_router.relay.request import Request

#: Bytes of later requests kept while one is answered; beyond, the socket is not read.
_AHEAD_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class ClientConnection(Arriving):
    """Feeds requests to exchanges, one at a time, and closes when one of them asks for it."""

    __slots__ = (
        "_ahead",
        "_pumping",
        "closed",
        "closing",
        "last_paused",
        "paused",
        "served",
        "stalled_bytes",
        "stalled_since",
    )

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._ahead = bytearray()
        self._pumping = False
        self.closed = False
        #: When we began to close; None: not closing.
        self.closing: float | None = None
        #: The client does not take what we write.
        self.paused = False
        #: When that was last so, in the coarse clock.
        self.last_paused = -1.0
        self.stalled_since = 0.0
        self.stalled_bytes = 0
        self.served = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.began = self.touched = self.hub.now
        self.transport.set_write_buffer_limits(high=self.hub.limits.high_water_bytes)
        self.hub.connected(self)

    @property
    def peer(self) -> bytes:
        """The client's address, as the cold application is told it."""
        name = self.transport.get_extra_info("peername")
        return str(name[0]).encode("latin-1", "replace") if name else b"unknown"

    def waiting_bytes(self) -> int:
        """Of bodies that arrive or wait here; not of one that an engine was sent."""
        total = len(self._body) if self.parsing is not None else 0
        exchange = self.current
        if exchange is not None and exchange.endpoint is None:
            total += len(exchange.body)
        if self._ready:
            total += sum(len(one.body) for one in self._ready)
        return total

    # --- asyncio's calls

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        last = self._last
        if last is not None and self.current is None and self.parsing is None and not self._head_bytes:
            body = again(last, data)
            if body is not None and self._at_once(last, body):
                return
        if self.current is not None:
            self._ahead += data
            if len(self._ahead) > _AHEAD_BYTES:
                # Its leaving is then noticed only when writing fails: the price of what it does.
                self.transport.pause_reading()
            return
        self._feed(data)
        if self._ready:
            self.pump()

    def _at_once(self, last: RequestHead, body: bytes) -> bool:
        """Begin what the connection has sent again, with another body. False: it takes the long way."""
        hub = self.hub
        limits = hub.limits
        if (
            len(body) > limits.max_body_bytes
            or last.size > limits.max_head_bytes
            or self._ready
            or self._pumping
            or self.closing is not None
        ):
            return False
        self.began = self.touched = hub.now
        exchange = self.current = self._again(last, body)
        hub.begin(exchange)
        return True

    def pump(self) -> None:
        """Answer what is ready, one after the other; a loop, since refusals end at once."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.current is None and self.closing is None and not self.closed:
                if self._ready:
                    exchange = self._ready.pop(0)
                    self.current = exchange
                    self.hub.begin(exchange)
                elif self._ahead:
                    data = bytes(self._ahead)
                    self._ahead.clear()
                    self.transport.resume_reading()
                    self._feed(data)
                else:
                    return
        finally:
            self._pumping = False

    def exchange_over(self, exchange: Request) -> None:
        """The current exchange has written all it will write."""
        self.current = None
        self.served += 1
        if self.closed:
            return
        self.touched = self.hub.now
        if not exchange.keep:
            self.end()
        elif self._ready or self._ahead:
            self.pump()
        elif self.hub.refusing and self.parsing is None:
            # Its head was sent before the drain began and promised to keep the connection.
            self.end()

    def end(self) -> None:
        """Close once everything written has left. A client still sending is listened to for a while:
        closing on unread bytes makes the kernel send a reset, which can overtake the answer."""
        if self.closing is not None or self.closed:
            return
        self.closing = self.hub.now
        if self._deaf and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self._deaf = True
            self.transport.close()

    def cut(self, *, reset: bool) -> None:
        """End without the framing's end, so that the client sees that something is missing. With
        `reset` by RST, where a plain close would read as the end."""
        self._deaf = True
        if self.closing is None:
            self.closing = self.hub.now
        if reset:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        self.paused = True
        self.stalled_since = self.last_paused = self.hub.now
        self.stalled_bytes = self.transport.get_write_buffer_size()
        exchange = self.current
        if exchange is not None and exchange.upstream is not None:
            exchange.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self.last_paused = self.hub.now
        self.stalled_bytes = 0
        exchange = self.current
        if exchange is not None and exchange.upstream is not None:
            exchange.touched = self.hub.now
            exchange.upstream.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        hub = self.hub
        exchange = self.current
        if exchange is not None:
            hub.guard(exchange, exchange.client_left)
        # Last: a worker that drains ends with its last connection, and tells nothing after that.
        hub.disconnected(self)
