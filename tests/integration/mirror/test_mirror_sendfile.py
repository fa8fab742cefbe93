"""Sending past the transport: order, stalls and ends, on both event loops."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.sendfile import ClientStalled, send

from .world import content_of

CONTENT = content_of(3_000_000)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a coroutine function on a loop of each kind."""

    def on_loop(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(main(), 30)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return on_loop


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "w").write_bytes(CONTENT)
    fd = os.open(tmp_path / "w", os.O_RDONLY)
    yield fd
    os.close(fd)


async def pair() -> tuple[asyncio.Transport, asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection: a server's transport, and the client's two ends."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    reader, writer = await asyncio.open_connection(sock=theirs, limit=1 << 16)
    return transport, reader, writer


Run = Callable[[Callable[[], Awaitable[None]]], None]


def test_what_the_transport_holds_goes_first(run: Run, file: int) -> None:
    async def main() -> None:
        transport, reader, writer = await pair()
        threads = DiskThreads(1)
        before = os.urandom(5_000_000)
        transport.write(before)
        assert transport.get_write_buffer_size() > 0
        sending = asyncio.ensure_future(send(transport, file, 7, 1_000_000, threads=threads, stall_s=5))
        assert await reader.readexactly(len(before)) == before
        assert await reader.readexactly(1_000_000) == CONTENT[7:1_000_007]
        await sending
        # And what comes after comes after.
        transport.write(b"next")
        assert await reader.readexactly(4) == b"next"
        writer.close()
        transport.close()
        threads.close()

    run(main)


def test_a_client_that_takes_nothing(run: Run, file: int) -> None:
    async def main() -> None:
        transport, _, writer = await pair()
        threads = DiskThreads(1)
        # It reads ahead a little, then its reader is full and the kernel is.
        with pytest.raises(ClientStalled):
            await send(transport, file, 0, len(CONTENT), threads=threads, stall_s=0.1)
        writer.close()
        transport.abort()
        threads.close()

    run(main)


def test_a_client_that_leaves(run: Run, file: int) -> None:
    async def main() -> None:
        transport, _, writer = await pair()
        threads = DiskThreads(1)
        sending = asyncio.ensure_future(send(transport, file, 0, len(CONTENT), threads=threads, stall_s=20))
        await asyncio.sleep(0)
        writer.transport.abort()
        with pytest.raises(ConnectionError):
            await sending
        transport.abort()
        threads.close()

    run(main)


def test_a_file_that_is_shorter_than_promised(run: Run, file: int) -> None:
    async def main() -> None:
        transport, reader, writer = await pair()
        threads = DiskThreads(1)
        sending = asyncio.ensure_future(
            send(transport, file, len(CONTENT) - 10, 20, threads=threads, stall_s=5)
        )
        assert await reader.readexactly(10) == CONTENT[-10:]
        with pytest.raises(EOFError, match="10 bytes early"):
            await sending
        writer.close()
        transport.abort()
        threads.close()

    run(main)
