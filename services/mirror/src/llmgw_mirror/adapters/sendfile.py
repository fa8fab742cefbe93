"""From a file into a client's socket without passing through this process, on any event loop.

uvloop has no sendfile, and asyncio's would read a cold file on the loop. So: a duplicate of the
socket's descriptor, readiness from the loop, the call itself in a thread, since it may wait for the disk.
"""

import asyncio
import os
import socket

from llmgw_mirror.adapters.disk import DiskThreads

#: Of one call; the socket's buffer takes less.
PIECE_BYTES = 8 << 20
#: Until the head, which the transport may hold for a turn of the loop, has left.
HEAD_POLL_S = 0.002


class ClientStalled(ConnectionError):
    """The client has taken no byte for too long."""


async def send(
    transport: asyncio.Transport, file: int, offset: int, count: int, *, threads: DiskThreads, stall_s: float
) -> None:
    """Send `count` bytes of an open file. Raises ConnectionError; EOFError when the file is shorter."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or transport.is_closing():
        raise ConnectionResetError("the client left")
    await _until_flushed(transport, stall_s)
    out = os.dup(sock.fileno())
    try:
        while count:
            if transport.is_closing():
                raise ConnectionResetError("the client left")
            try:
                sent = await threads.run(os.sendfile, out, file, offset, min(count, PIECE_BYTES))
            except BlockingIOError:
                await _until_writable(out, stall_s)
                continue
            if sent == 0:
                raise EOFError(f"the file ended at {offset}, {count} bytes early")
            offset, count = offset + sent, count - sent
    finally:
        os.close(out)


async def _until_flushed(transport: asyncio.Transport, stall_s: float) -> None:
    # What the transport still holds goes first, or the body would overtake it.
    try:
        async with asyncio.timeout(stall_s):
            await asyncio.sleep(0)
            while transport.get_write_buffer_size() and not transport.is_closing():
                await asyncio.sleep(HEAD_POLL_S)
    except TimeoutError:
        raise ClientStalled(f"the client took no byte for {stall_s:g} s") from None


async def _until_writable(fd: int, stall_s: float) -> None:
    loop = asyncio.get_running_loop()
    writable = loop.create_future()
    loop.add_writer(fd, lambda: None if writable.done() else writable.set_result(None))
    try:
        await asyncio.wait_for(writable, stall_s)
    except TimeoutError:
        raise ClientStalled(f"the client took no byte for {stall_s:g} s") from None
    finally:
        loop.remove_writer(fd)
