"""From a file into a client's socket without passing through this process, on any event loop.

uvloop has no sendfile, and asyncio's would read a cold file on the loop. So: a duplicate of the
socket's descriptor, and bursts in a thread, since the call may wait for the disk. A client that keeps up
stays in the thread for a while; one that does not is waited for by the loop, at no cost.
"""

import asyncio
import os
import select
import socket
import time

from llmgw_mirror.adapters.disk import DiskThreads

#: Of one call; the socket's buffer takes less.
CALL_BYTES = 8 << 20
#: A thread stays with one client so long, and waits for it so long: there are more clients than threads.
BURST_S = 0.1
KEEPS_UP_MS = 5
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
            sent = await threads.run(_burst, out, file, offset, count)
            if sent == 0:
                await _until_writable(out, stall_s)
            offset, count = offset + sent, count - sent
    finally:
        os.close(out)


def _burst(out: int, file: int, offset: int, count: int) -> int:
    """Send until done, out of time, or the client does not keep up. Returns the bytes sent."""
    until = time.monotonic() + BURST_S
    writable = select.poll()
    writable.register(out, select.POLLOUT)
    sent = 0
    while sent < count and time.monotonic() < until:
        try:
            more = os.sendfile(out, file, offset + sent, min(count - sent, CALL_BYTES))
        except BlockingIOError:
            if not writable.poll(KEEPS_UP_MS):
                break
            continue
        if more == 0:
            raise EOFError(f"the file ended at {offset + sent}, {count - sent} bytes early")
        sent += more
    return sent


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
