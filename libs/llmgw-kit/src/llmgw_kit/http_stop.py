"""The end of an HTTP listener: what its handlers have written is not yet what has left this process.

Over TLS a megabyte may wait in the transport when its handler returns, and the HTTP library closes
connections without waiting for that. Transports do not tell what they hold below TLS; the kernel does: while
they hold anything, its queue of the connection does not stay empty.
"""

import asyncio
import fcntl
import struct
import termios
import time
from typing import Any

from aiohttp import web

#: Between two looks at the queues.
_LOOK_S = 0.01
#: So often in a row a queue must be found empty: the loop may be about to fill it.
_EMPTY_TIMES = 3


class Lines:
    """The open connections of one listener."""

    def __init__(self) -> None:
        #: With its socket, which a transport that was closed twice cannot be asked for any more.
        self._open: dict[asyncio.Transport, Any] = {}

    def __len__(self) -> int:
        return len(self._open)

    def made(self, line: asyncio.Transport) -> None:
        self._open[line] = line.get_extra_info("socket")

    def lost(self, line: asyncio.Transport) -> None:
        self._open.pop(line, None)

    async def leave(self, *, within_s: float) -> None:
        """After every one of them was told to close: wait for what they still hold, then cut them.

        A client that takes nothing holds this up for `within_s`; one that merely keeps it open does not."""
        empty: dict[asyncio.Transport, int] = {}
        until = time.monotonic() + within_s
        while waiting := {line for line in self._open if empty.get(line, 0) < _EMPTY_TIMES}:
            for line in waiting:
                empty[line] = empty.get(line, 0) + 1 if _queued(self._open[line]) == 0 else 0
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_LOOK_S)
        for line in tuple(self._open):
            line.abort()
        # What was cut tells its protocol in the next turn.
        await asyncio.sleep(0)


class LeavingRunner(web.AppRunner):
    """Ends once what was answered has left this process, or `shutdown_s` is over."""

    def __init__(self, app: web.Application, *, shutdown_s: float, **kwargs: Any) -> None:
        super().__init__(app, shutdown_timeout=shutdown_s, **kwargs)
        self.lines = Lines()
        self._shutdown_s = shutdown_s

    async def cleanup(self) -> None:
        began = time.monotonic()
        await super().cleanup()
        await self.lines.leave(within_s=max(0.0, self._shutdown_s - (time.monotonic() - began)))


def _queued(sock: Any) -> int:
    """Bytes that the peer has not acknowledged."""
    if sock is None:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except (OSError, ValueError):
        return 0  # it is closed
