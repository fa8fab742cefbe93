"""A body from an open file to its client, by whatever way its connection allows.

Plaintext goes by sendfile, past this process. Over TLS nothing can: the bytes are read in a thread, a
megabyte at a time, and written as they are taken. (aiohttp's own FileResponse reads 16 KiB a thread hop
there; a fifth of the speed.)
"""

import asyncio
import os
import socket

from aiohttp import web

from llmgw_mirror.adapters import sendfile
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.sendfile import ClientStalled

#: Of one read and one write over TLS. Twice this is what an answer costs in memory, whatever its size.
WRITE_BYTES = 1 << 20
#: Where Linux's tcp_info has tcpi_bytes_acked (linux/tcp.h, since 4.1), a little-endian u64.
_ACKED = slice(120, 128)


async def send_body(
    request: web.Request, response: web.StreamResponse, file: int, offset: int, count: int, *,
    threads: DiskThreads, stall_s: float,
) -> None:  # fmt: skip
    """Send `count` bytes of an open file as the body of a response that is prepared.

    Raises ConnectionError, ClientStalled among them; EOFError when the file is shorter."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client left")
    if transport.get_extra_info("sslcontext") is None:
        await sendfile.send(transport, file, offset, count, threads=threads, stall_s=stall_s)
    else:
        await _written(response, transport, file, offset, count, threads=threads, stall_s=stall_s)


async def _written(
    response: web.StreamResponse, transport: asyncio.Transport, file: int, offset: int, count: int, *,
    threads: DiskThreads, stall_s: float,
) -> None:  # fmt: skip
    watch = _Watch(transport, stall_s)
    end = offset + count
    while offset < end:
        data = await threads.run(os.pread, file, min(WRITE_BYTES, end - offset), offset)
        if not data:
            raise EOFError(f"the file ended at {offset}, {end - offset} bytes early")
        watch.begin()
        try:
            await response.write(data)
        finally:
            watch.end()
        if watch.stalled:
            raise ClientStalled(f"the client took no byte for {stall_s:g} s")
        if transport.is_closing():
            raise ConnectionResetError("the client left")
        offset += len(data)


class _Watch:
    """Aborts a connection whose client has taken no byte for `stall_s` while bytes wait for it.

    What it took is what its kernel acknowledged. The transport's own count says nothing: a slow client may
    need minutes for what is encrypted already, and moves all the time."""

    def __init__(self, transport: asyncio.Transport, stall_s: float) -> None:
        self.stalled = False
        self._transport = transport
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._timer = self._loop.call_later(self._stall_s, self._look, self._acked())

    def end(self) -> None:
        assert self._timer is not None, "begun before"
        self._timer.cancel()

    def _look(self, before: int | None) -> None:
        now = self._acked()
        if now is not None and now != before:
            self._timer = self._loop.call_later(self._stall_s, self._look, now)
            return
        self.stalled = True
        # Wakes whoever waits for the client to take more.
        self._transport.abort()

    def _acked(self) -> int | None:
        """None: the connection is gone, or it is no TCP."""
        # A connection that is gone knows nothing any more: asyncio's stumbles when it is asked.
        sock = None if self._transport.is_closing() else self._transport.get_extra_info("socket")
        if sock is None:
            return None
        try:
            with socket.socket(fileno=os.dup(sock.fileno())) as own:
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
        except OSError:
            return None
        return int.from_bytes(info[_ACKED], "little")
