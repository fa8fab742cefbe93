"""A node that reads as slowly as a test wants: raw HTTP over a socket with a small buffer."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from llmgw_kit.addresses import HostPort

#: Bytes of this client's socket buffer; the server's own takes some megabytes besides.
BUFFER_BYTES = 4096


@dataclass
class SlowReader:
    """Has asked, and has seen the head of the answer."""

    reader: asyncio.StreamReader
    status: int

    async def rest(self) -> bytes:
        """Everything that still comes, until the connection ends in any way."""
        got = bytearray()
        try:
            while piece := await self.reader.read(1 << 20):
                got += piece
        except ConnectionError:
            pass  # broken off is what some tests wait for; what came is what they look at
        return bytes(got)


@asynccontextmanager
async def reading(at: HostPort, path: str) -> AsyncIterator[SlowReader]:
    """A GET whose body is not taken until the test does."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (at.host, at.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=BUFFER_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: mirror\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        yield SlowReader(reader, int(head.split(b" ", 2)[1]))
    finally:
        writer.transport.abort()
