"""Files over mutual TLS: the same bytes, clients that are slow, gone or unknown, on both event loops."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from llmgw_kit.addresses import HostPort
from llmgw_kit.testing.authority import Authority
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_watch import Side, WatchedTls
from llmgw_mirror.core.versions import Source

from .scripted import upstream
from .world import World, content_of, listening, sha256_of, until, world

#: More than the kernel and the transports hold for a connection that nobody reads.
BIG = content_of(24_000_000)
VERSION = "/v1/weights/org%2Fm/v1"
FILE = f"{VERSION}/files/w.bin"


@dataclass
class Here:
    at: HostPort
    world: World
    served: WatchedTls
    client: ssl.SSLContext
    #: What the event loop was told that nobody handled.
    unhandled: list[Any]

    def get(self, session: aiohttp.ClientSession, **headers: str) -> Any:
        from yarl import URL

        return session.get(URL(f"https://{self.at}{FILE}", encoded=True), ssl=self.client, headers=headers)

    async def raw(
        self,
        limit: int = 1 << 16,
        kernel_holds: int | None = None,
        asking: str = f"GET {FILE}",
        body: str = "",
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which the file was asked for."""
        sock = socket.socket()
        sock.setblocking(False)
        if kernel_holds is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kernel_holds)
        await asyncio.get_running_loop().sock_connect(sock, (self.at.host, self.at.port))
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=self.client, server_hostname=self.at.host, limit=limit
        )
        head = f"{asking} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        return reader, writer

    async def quiet(self) -> None:
        """Until no answer is under way."""
        answers = self.world.answers
        assert answers is not None
        await until(lambda: answers.served.open == 0)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def files(ca: Authority) -> dict[Side, TlsFiles]:
    return {
        Side.SERVER: ca.sign("mirror").trusting(ca.cert),
        Side.CLIENT: ca.sign("node-7").trusting(ca.cert),
    }


Main = Callable[[Here], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path, files: dict[Side, TlsFiles]) -> Run:
    """Run a test over a mirror with TLS, on a loop of each kind."""

    def on_loop(main: Main, **settings: object) -> None:
        async def all_of_it() -> None:
            async with asyncio.timeout(60), mirror(tmp_path, files, **settings) as here:
                await main(here)
            assert here.unhandled == []

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(all_of_it())

    return on_loop


@asynccontextmanager
async def mirror(folder: Path, files: dict[Side, TlsFiles], **settings: object) -> AsyncIterator[Here]:
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    served = WatchedTls(files[Side.SERVER], Side.SERVER, what="tls")
    client = WatchedTls(files[Side.CLIENT], Side.CLIENT, what="client").context
    async with upstream() as hub, world(folder / "store", **settings) as made:
        await made.fetch(Source("w.bin", hub.put("/w", BIG)))
        async with listening(made, tls=served.context) as at:
            yield Here(at, made, served, client, unhandled)


def test_the_same_bytes_whole_and_by_ranges_over_one_connection(run: Run) -> None:
    async def main(here: Here) -> None:
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(2):
                async with here.get(session) as answer:
                    assert (answer.status, answer.headers["ETag"]) == (200, f'"{sha256_of(BIG)}"')
                    assert await answer.read() == BIG
            async with here.get(session, Range="bytes=1048575-5000000") as answer:
                assert answer.status == 206
                assert answer.headers["Content-Range"] == f"bytes 1048575-5000000/{len(BIG)}"
                assert await answer.read() == BIG[1048575:5000001]
        answers = here.world.answers
        assert answers is not None
        assert answers.served.bytes == 2 * len(BIG) + 5000001 - 1048575

    run(main)


def test_many_at_once(run: Run) -> None:
    async def main(here: Here) -> None:
        async def one(session: aiohttp.ClientSession, start: int) -> bool:
            async with here.get(session, Range=f"bytes={start}-") as answer:
                return bool(await answer.read() == BIG[start:])

        async with aiohttp.ClientSession() as session:
            assert all(await asyncio.gather(*(one(session, n * 1_000_003) for n in range(12))))

    run(main)


def test_who_shows_no_certificate_of_ours_gets_nothing(run: Run, tmp_path: Path, ca: Authority) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger").sign("node")

    async def main(here: Here) -> None:
        without = WatchedTls(TlsFiles(ca=ca.cert), Side.CLIENT, what="client")
        alien = WatchedTls(stranger.trusting(ca.cert), Side.CLIENT, what="client")
        async with aiohttp.ClientSession() as session:
            for context in (without.context, alien.context):
                here.client = context
                with pytest.raises((aiohttp.ClientError, ConnectionError)):
                    async with here.get(session) as answer:
                        await answer.read()
        reader, writer = await asyncio.open_connection(here.at.host, here.at.port)
        writer.write(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b"HTTP/1.1 2" not in await reader.read()
        writer.close()
        assert here.served.handshakes_failed >= 3  # aiohttp asks again

    run(main)


def test_a_client_that_takes_nothing_is_cut_off(run: Run) -> None:
    async def main(here: Here) -> None:
        reader, writer = await here.raw(limit=1024)
        await reader.readuntil(b"\r\n\r\n")
        await here.quiet()
        taken = 0
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            while piece := await reader.read(1 << 20):
                taken += len(piece)
            raise asyncio.IncompleteReadError(b"", len(BIG))
        assert taken < len(BIG)
        writer.close()

    run(main, send_stall_s=0.3)


def test_whoever_takes_files_or_pieces_is_known_by_one_name(run: Run) -> None:
    async def main(here: Here) -> None:
        _, whole = await here.raw(limit=1024)
        _, piece = await here.raw(limit=1024, asking=f"POST {VERSION}/next", body='{"lacks": "03"}')
        reads = here.world.built.reads
        await until(lambda: len(reads) == 2)
        assert reads.peers_of([sha256_of(BIG)]) == ["node-7"]
        for writer in (whole, piece):
            writer.transport.abort()

    run(main)


def test_a_slow_client_is_served_to_the_end(run: Run) -> None:
    """Each megabyte takes it longer than a stall may last; it moves all the time."""

    async def main(here: Here) -> None:
        reader, writer = await here.raw(limit=1 << 14, kernel_holds=1 << 16)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0]
        taken = b""
        # Slow for longer than buffers can hide, then in a hurry.
        for _ in range(25):
            taken += await reader.readexactly(50_000)
            await asyncio.sleep(0.1)
        taken += await reader.readexactly(len(BIG) - len(taken))
        assert taken == BIG
        writer.close()

    run(main, send_stall_s=1.5)


def test_clients_that_hang_up_cost_nobody_anything(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """cpython's own sendfile fallback raises from inside the loop when they do."""

    async def main(here: Here) -> None:
        async def rude(taken: int) -> None:
            reader, writer = await here.raw()
            await reader.readexactly(taken)
            writer.transport.abort()

        await asyncio.gather(*(rude(n * n * 40_000 + 1) for n in range(20)))
        await here.quiet()
        async with aiohttp.ClientSession() as session, here.get(session) as answer:
            assert await answer.read() == BIG

    with caplog.at_level(logging.WARNING):
        run(main)
    assert [
        record.getMessage() for record in caplog.records if record.name != "llmgw_mirror.composition"
    ] == []


def test_a_file_that_is_shorter_than_promised_breaks_the_connection(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(here: Here) -> None:
        reader, writer = await here.raw(limit=1024)
        await reader.readuntil(b"\r\n\r\n")
        (sha256,) = here.world.blobs()
        path = here.world.mirror.content(sha256)
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.truncate(len(BIG) - 1)
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(BIG))
        writer.close()

    run(main)
    assert any("1 bytes early" in record.getMessage() for record in caplog.records)
