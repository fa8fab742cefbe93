"""A scripted upstream on loopback: every byte, cut and reset of an engine, under a test's control."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

#: No step of a script may hang a test longer than this.
STEP_S = 30.0

_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def one(self, name: bytes) -> bytes:
        (value,) = self.all(name)
        return value


class Connection:
    """The upstream's end of one connection."""

    def __init__(
        self, upstream: "Upstream", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._upstream = upstream
        self._reader = reader
        self._writer = writer
        self.served = 0

    async def request(self) -> Seen:
        """Read one request; its framing must be a content-length or nothing."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), STEP_S)
        line, *rest = head[:-4].split(b"\r\n")
        headers = [(name, value.strip()) for name, _, value in (field.partition(b":") for field in rest)]
        seen = Seen(line, headers, b"")
        length = seen.all(b"content-length")
        if length:
            body = await asyncio.wait_for(self._reader.readexactly(int(length[0])), STEP_S)
            seen = Seen(line, headers, body)
        self.served += 1
        self._upstream.seen.append(seen)
        return seen

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def dribble(self, data: bytes, *, size: int = 1) -> None:
        """Send in pieces that arrive apart."""
        for at in range(0, len(data), size):
            await self.send(data[at : at + size])
            await asyncio.sleep(0.001)

    def fin(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        if self._writer.is_closing():
            # The router was quicker.
            return
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()

    async def closed_by_peer(self) -> float:
        """Wait for the router to close; returns the loop's time of it."""
        while True:
            try:
                data = await asyncio.wait_for(self._reader.read(65536), STEP_S)
            except ConnectionError:
                data = b""
            if not data:
                return asyncio.get_running_loop().time()


Script = Callable[[Connection], Awaitable[None]]


@dataclass
class Upstream:
    """Runs `script` once per connection; keeps what it has seen, and what scripts have raised."""

    script: Script
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)
    port: int = 0
    #: Listen on this unix socket instead of a port.
    path: str | None = None

    async def __aenter__(self) -> "Upstream":
        self._tasks: set[asyncio.Task[None]] = set()
        if self.path is not None:
            self._server = await asyncio.start_unix_server(self._serve, self.path)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for failure in self.failures:
            raise failure

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self.script(Connection(self, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # The router has closed, or the test is over: the usual end of a script that waits.
            pass
        except Exception as failure:
            self.failures.append(failure)
        finally:
            writer.close()
            self._tasks.discard(task)


def json_answer(content: bytes = b'{"ok":true}', *, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b" % (
        status,
        len(content),
        more,
        content,
    )


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST = b"0\r\n\r\n"


def answering(answer: bytes) -> Script:
    """Answer every request on a kept connection with these bytes."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(answer)

    return script
