"""One worker's process as the supervisor holds it: pid, channel, and the word of its end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import cast

from llmgw_router.relay.ipc import ChannelBroken, Down, Frames, Up, decode_up, pack


def _popen(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    # Returns when the exec has happened (vfork), a few milliseconds; no thread of ours runs in the child.
    return subprocess.Popen(
        [sys.executable, "-m", "llmgw_router.relay.worker", *(str(fd) for fd in fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        start_new_session=True,
    )


class _Channel(asyncio.Protocol):
    """Frames from the worker, decoded and handed on."""

    def __init__(self, on_message: Callable[[Up], None]) -> None:
        self._on_message = on_message
        self._frames = Frames()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are not asyncio.Transport's children.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._on_message(decode_up(body))
        except ChannelBroken:
            # The worker reads our end of file as "the supervisor is gone", finishes and exits;
            # its exit brings a fresh one.
            assert self.transport is not None
            self.transport.abort()


class WorkerProcess:
    """A spawned worker. Its exit is told once, by `on_exit(returncode)`; never before."""

    def __init__(self, process: subprocess.Popen[bytes], channel: _Channel, pidfd: int) -> None:
        self._process = process
        self._channel = channel
        self._pidfd = pidfd
        self.exited: asyncio.Event = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def spawn(
        cls,
        *,
        slots_fd: int,
        listeners: Sequence[socket.socket],
        on_message: Callable[[Up], None],
        on_exit: Callable[[int], None],
    ) -> "WorkerProcess":
        """Start `python -m llmgw_router.relay.worker` with its channel, the slots and its listening sockets.

        By exec, never by fork alone: this process may have imported gRPC, whose threads do not
        survive a fork. In a session of its own, so that Ctrl-C in a terminal reaches only the
        supervisor, which knows the order of stopping.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            fds = [theirs.fileno(), slots_fd, *(sock.fileno() for sock in listeners)]
            process = _popen(fds)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        _, channel = await loop.create_connection(lambda: _Channel(on_message), sock=ours)
        pidfd = os.pidfd_open(process.pid)
        self = cls(process, channel, pidfd)

        def reap() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            returncode = process.wait()
            assert channel.transport is not None
            channel.transport.abort()
            self.exited.set()
            on_exit(returncode)

        loop.add_reader(pidfd, reap)
        return self

    def send(self, message: Down) -> None:
        transport = self._channel.transport
        if transport is not None and not transport.is_closing():
            transport.write(pack(message))

    def dump(self) -> None:
        """Have it write the stacks of its threads to its stderr."""
        if not self.exited.is_set():
            signal.pidfd_send_signal(self._pidfd, signal.SIGUSR1)

    def kill(self) -> None:
        """SIGKILL by pidfd: a number taken over by another process is never hit."""
        if not self.exited.is_set():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
