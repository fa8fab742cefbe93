"""TLS files replaced under a running process: the next handshake has the new ones, or the old ones if the new
are no good (D23, F1, F2)."""

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.testing.authority import Authority, Pair
from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_dates import expires_at
from llmgw_kit.tls_watch import Side, WatchedTls

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture(scope="module")
def first(ca: Authority) -> Pair:
    return ca.sign("first")


@pytest.fixture(scope="module")
def second(ca: Authority) -> Pair:
    return ca.sign("second")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def on_loop(main: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main(), 30))

    return on_loop


def put(folder: Path, pair: Pair, ca: Authority) -> TlsFiles:
    """The files as a mounted folder has them: all replaced at once by a link."""
    version = folder / f"v{len(list(folder.glob('v*')))}"
    version.mkdir(parents=True)
    for source, name in ((pair.cert, "tls.crt"), (pair.key, "tls.key"), (ca.cert, "ca.crt")):
        shutil.copy(source, version / name)
    link = folder / "next"
    link.symlink_to(version.name)
    os.replace(link, folder / "now")
    return TlsFiles(folder / "now" / "tls.crt", folder / "now" / "tls.key", folder / "now" / "ca.crt")


@asynccontextmanager
async def echoing(tls: WatchedTls) -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def said(context: ssl.SSLContext, port: int) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """(common name of whoever answers, and the open connection)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    return dict(one[0] for one in certificate["subject"])["commonName"], reader, writer


def test_the_next_handshake_has_the_new_certificate_and_open_connections_go_on(
    run: Run, tmp_path: Path, ca: Authority, first: Pair, second: Pair
) -> None:
    async def main() -> None:
        served = WatchedTls(put(tmp_path, first, ca), Side.SERVER, what="tls")
        asking = WatchedTls(first.trusting(ca.cert), Side.CLIENT, what="client")
        async with echoing(served) as port:
            name, reader, writer = await said(asking.context, port)
            assert name == "first"
            assert not served.refresh()
            put(tmp_path, second, ca)
            assert served.refresh()
            assert served.now.generation == 2
            newer, _, other_writer = await said(asking.context, port)
            assert newer == "second"
            writer.write(b"still\n")
            assert await reader.readline() == b"still\n"
            for one in (writer, other_writer):
                one.close()

    run(main)


def test_an_authority_that_was_taken_away_is_trusted_no_more(
    run: Run, tmp_path: Path, ca: Authority, other: Authority, first: Pair
) -> None:
    async def main() -> None:
        served = WatchedTls(put(tmp_path, first, ca), Side.SERVER, what="tls")
        ours = WatchedTls(first.trusting(ca.cert), Side.CLIENT, what="client")
        theirs = WatchedTls(other.sign("theirs").trusting(ca.cert), Side.CLIENT, what="client")
        async with echoing(served) as port:
            await said(ours.context, port)
            put(tmp_path, first, other)
            assert served.refresh()
            await said(theirs.context, port)
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await said(ours.context, port)
        assert served.handshakes_failed == 1

    run(main)


def test_a_client_shows_its_new_certificate_without_a_restart(
    run: Run, tmp_path: Path, ca: Authority, first: Pair, second: Pair
) -> None:
    shown = []

    async def main() -> None:
        served = WatchedTls(first.trusting(ca.cert), Side.SERVER, what="tls")
        asking = WatchedTls(put(tmp_path, first, ca), Side.CLIENT, what="client")

        async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            certificate = writer.get_extra_info("ssl_object").getpeercert()
            shown.append(dict(one[0] for one in certificate["subject"])["commonName"])
            writer.write(b"hello\n")
            writer.close()

        server = await asyncio.start_server(look, "127.0.0.1", 0, ssl=served.context)
        port = server.sockets[0].getsockname()[1]
        for pair in (first, second):
            put(tmp_path, pair, ca)
            asking.refresh()
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking.context)
            assert await reader.readline() == b"hello\n"
            writer.close()
        server.close()

    run(main)
    assert shown == ["first", "second"]


def test_files_that_do_not_fit_are_told_once_and_the_old_ones_stay(
    tmp_path: Path, ca: Authority, first: Pair, second: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    served = WatchedTls(put(tmp_path, first, ca), Side.SERVER, what="tls of the mirror")
    before = served.now
    put(tmp_path, Pair(first.cert, second.key), ca)
    with caplog.at_level(logging.ERROR):
        assert not served.refresh()
        assert not served.refresh()
    (told,) = caplog.records
    assert "tls of the mirror: certificate" in told.getMessage()
    assert "stays in force" in told.getMessage()
    assert served.refused is not None
    assert served.now is before
    put(tmp_path, second, ca)
    assert served.refresh()
    assert served.refused is None


def test_files_that_vanish_change_nothing(tmp_path: Path, ca: Authority, first: Pair) -> None:
    served = WatchedTls(put(tmp_path, first, ca), Side.SERVER, what="tls")
    before = served.now
    (tmp_path / "now").unlink()
    assert not served.refresh()
    assert served.now is before
    assert served.refused is not None


async def test_the_files_are_looked_at_every_few_seconds(
    tmp_path: Path, ca: Authority, first: Pair, second: Pair
) -> None:
    clock = FakeClock()
    served = WatchedTls(put(tmp_path, first, ca), Side.SERVER, what="tls")
    looking = asyncio.create_task(served.watch(clock.sleep, every_s=10))
    put(tmp_path, second, ca)
    await clock.advance(9.9)
    assert served.now.generation == 1
    await clock.advance(0.2)
    assert served.now.generation == 2
    looking.cancel()


@pytest.mark.parametrize("wrong", ["cert", "key", "ca"])
def test_a_file_that_is_not_there_stops_the_start_by_name(
    tmp_path: Path, ca: Authority, first: Pair, wrong: str
) -> None:
    files = put(tmp_path, first, ca)
    path = getattr(files, wrong)
    path.unlink()
    with pytest.raises(InvalidRequest, match=f"^tls: .*{path}"):
        WatchedTls(files, Side.SERVER, what="tls")


@pytest.mark.parametrize(
    ("days", "low", "high"), [("2", 1.9, 2.1), ("-1", -1.1, -0.9), ("20000", 19999, 20001)]
)
def test_when_a_certificate_ends(tmp_path: Path, days: str, low: float, high: float) -> None:
    pair = Authority(tmp_path).sign("x", days=days)
    end = expires_at(pair.cert.read_bytes())
    assert end is not None
    assert low <= (end - SystemClock().unix_s()) / 86400 <= high


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", b"\xff"]
)
def test_an_end_that_cannot_be_told_is_unknown(pem: bytes) -> None:
    assert expires_at(pem) is None
