"""A relay worker's process: `python -m llmgw_router.relay.worker CHANNEL_FD SLOTS_FD LISTENER_FD…`.

Spawned by the supervisor, configured over its channel, and serving as soon as the first table is
there. It ends by Drain or Stop, or when the channel closes: without a supervisor nobody would
ever tell it anything again, so it gives the port up and finishes what it has.
"""

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import time
from typing import cast

from llmgw_router.relay import ipc
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.running import running
from llmgw_router.relay.slots import COUNTER, Slots
from llmgw_router.relay.stopping import Stopping
from llmgw_router.relay.sweep import sweep

_DROPPED = COUNTER["log_lines_dropped"]

#: How long what runs may go on after the supervisor was lost.
_OWN_DEADLINE_S = 30.0

#: Above this, records and log lines for the supervisor are dropped and counted.
_CONGESTED_BYTES = 8 * 1024 * 1024


class Channel(asyncio.Protocol):
    """The worker's end: frames in become calls, messages out become frames."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self._frames = ipc.Frames()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are not asyncio.Transport's children.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._worker.hear(ipc.decode_down(body))

    def tell(self, message: ipc.Up) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if (
            isinstance(message, ipc.AccessRecords | ipc.LogLines)
            and transport.get_write_buffer_size() > _CONGESTED_BYTES
        ):
            # A supervisor that does not read must not cost memory. What it needs to know still goes out.
            self._worker.dropped(message)
            return
        transport.write(ipc.pack(message))

    def connection_lost(self, exc: Exception | None) -> None:
        self._worker.orphaned()


class Worker:
    """Puts the parts together in the order in which the supervisor's messages come."""

    def __init__(self, slots_fd: int, listeners: list[socket.socket]) -> None:
        self._slots_fd = slots_fd
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._hub: Hub | None = None
        self._stopping: Stopping | None = None
        self._serving: asyncio.Task[None] | None = None
        self.channel = Channel(self)
        self.over: asyncio.Future[int] = self._loop.create_future()

    def hear(self, message: ipc.Down) -> None:
        match message:
            case ipc.Configure():
                slots = Slots(self._slots_fd, workers=message.workers, capacity=message.slot_capacity)
                self._hub = Hub(message, slots, self._loop, self.channel.tell)
                self._stopping = Stopping(self._hub, self._listeners, self._end)
            case ipc.TableUpdate():
                assert self._hub is not None
                self._hub.routes.apply(message)
                if self._serving is None:
                    self._serving = self._loop.create_task(self._serve(self._hub))
            case ipc.TableDelta():
                assert self._hub is not None
                self._hub.routes.apply_delta(message)
            case ipc.KeysUpdate():
                assert self._hub is not None
                self._hub.access.update(message)
            case ipc.Reconfigure(config=config):
                assert self._hub is not None
                self._hub.reconfigure(config)
            case ipc.Probed():
                assert self._hub is not None
                self._hub.warden.probed(message)
            case ipc.StartPhase():
                assert self._hub is not None
                self._hub.room.phase(message)
            case ipc.Gates():
                assert self._hub is not None
                self._hub.queue.numbers(message)
            case ipc.ActivationRefused():
                assert self._hub is not None
                self._hub.room.refuse(message)
            case ipc.Drain(deadline_s=deadline_s, grace_s=grace_s):
                self.drain(deadline_s, grace_s)
            case ipc.AskRunning(ask=ask):
                assert self._hub is not None
                self.channel.tell(running(self._hub, ask))
            case ipc.Stop():
                self._end(0)

    def dropped(self, message: ipc.AccessRecords | ipc.LogLines) -> None:
        if self._hub is not None:
            many = len(message.records if isinstance(message, ipc.AccessRecords) else message.lines)
            self._hub.counters[_DROPPED] += many

    async def _serve(self, hub: Hub) -> None:
        servers = [
            await self._loop.create_server(lambda: ClientConnection(hub), sock=sock, backlog=4096)
            for sock in self._listeners
        ]
        assert self._stopping is not None
        self._stopping.serving(servers)
        # What is alive now lives as long as the process: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        self._sweep_later(hub)
        self.channel.tell(ipc.Started(pid=os.getpid(), worker=hub.worker))

    def _sweep_later(self, hub: Hub) -> None:
        self._due_ns = time.monotonic_ns() + int(hub.limits.sweep_s * 1e9)
        self._loop.call_later(hub.limits.sweep_s, self._sweep, hub)

    def _sweep(self, hub: Hub) -> None:
        try:
            hub.accounts.turned(time.monotonic_ns(), self._due_ns)
            sweep(hub)
        finally:
            self._sweep_later(hub)

    def drain(self, deadline_s: float, grace_s: float = 1.0) -> None:
        if self._stopping is None:
            self._end(0)
        else:
            self._stopping.begin(deadline_s, grace_s)

    def orphaned(self) -> None:
        if not self.over.done():
            self.drain(_OWN_DEADLINE_S, 0.0)

    def _end(self, code: int) -> None:
        if not self.over.done():
            if self._hub is not None:
                self._hub.flush()
            self.over.set_result(code)


async def _main(channel_fd: int, slots_fd: int, listener_fds: list[int]) -> int:
    loop = asyncio.get_running_loop()
    listeners = [socket.socket(fileno=fd) for fd in listener_fds]
    worker = Worker(slots_fd, listeners)
    await loop.create_connection(lambda: worker.channel, sock=socket.socket(fileno=channel_fd))
    return await worker.over


def main(argv: list[str]) -> int:
    """Run until told to end. uvloop where it is installed; plain asyncio serves as well, a little dearer."""
    channel_fd, slots_fd, *listener_fds = (int(word) for word in argv)
    logging.basicConfig(level=logging.WARNING, format="relay worker %(process)d: %(message)s")
    # The supervisor knows the order of stopping, and tells us; where a whole group is signalled, it is too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Written by a handler in C, so that it also tells where a loop hangs that runs no Python handler.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    try:
        import uvloop
    except ImportError:
        runner = asyncio.Runner()
    else:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        return runner.run(_main(channel_fd, slots_fd, listener_fds))


if __name__ == "__main__":
    # Not through interpreter shutdown: the slots are mapped and views of them are everywhere.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
