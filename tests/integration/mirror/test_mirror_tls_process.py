"""The real mirror behind mutual TLS: its start, its listeners, new certificates while it runs, its stop."""

from __future__ import annotations  # the stubs' asynchronous types exist in their type stubs only

import asyncio
import hashlib
import json
import shutil
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from yarl import URL

from llmgw.v1 import mirror_pb2, mirror_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.testing.authority import Authority, Pair
from llmgw_kit.testing.processes import Cage
from llmgw_kit.tls_watch import Side, WatchedTls
from tests import metrics_page

from .scripted import Upstream
from .test_mirror_process import Running, configured, run, source, start
from .world import PATIENCE_S, content_of, until

BIG = content_of(24_000_000)
FILE = "/v1/weights/org%2Fm/v1/files/w.bin"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def ours(ca: Authority) -> WatchedTls:
    return WatchedTls(ca.sign("node").trusting(ca.cert), Side.CLIENT, what="client")


def put(folder: Path, pair: Pair, ca: Authority) -> dict[str, Any]:
    """Certificate and key where the mirror finds them; returns its settings."""
    folder.mkdir(exist_ok=True)
    for origin, name in ((pair.key, "tls.key"), (pair.cert, "tls.crt"), (ca.cert, "ca.crt")):
        shutil.copy(origin, folder / name)
    return {
        "tls_cert": str(folder / "tls.crt"), "tls_key": str(folder / "tls.key"),
        "tls_client_ca": str(folder / "ca.crt"),
    }  # fmt: skip


async def fetched(mirror: Running, hub: Upstream, ours: WatchedTls) -> None:
    """The file is asked for by gRPC over TLS, and waited for by HTTPS."""
    channel = rpc.channel(mirror.grpc, tls=ours.now)
    request = mirror_pb2.FetchRequest(
        model="org/m", version="v1", files=[source("w.bin", hub.put("/w", BIG))]
    )
    try:
        await mirror_pb2_grpc.MirrorServiceStub(channel).Fetch(request, timeout=PATIENCE_S)
    finally:
        await rpc.close_quietly(channel)
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
        while True:
            async with session.get(url(mirror, "/v1/weights/org%2Fm/v1"), ssl=ours.context) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)


def url(mirror: Running, path: str) -> URL:
    return URL(f"https://{mirror.http}{path}", encoded=True)


async def admin(mirror: Running, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{mirror.admin}{path}") as answer:
        return answer.status, await answer.text()


async def shown(mirror: Running, ours: WatchedTls) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(mirror.http.host, mirror.http.port, ssl=ours.context)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    return dict(one[0] for one in certificate["subject"])["commonName"], reader, writer


async def test_both_listeners_want_a_certificate_and_health_is_asked_without(
    cage: Cage, hub: Upstream, tmp_path: Path, ca: Authority, ours: WatchedTls
) -> None:
    """D13: an orchestrator's probe has no certificate."""
    tls = put(tmp_path / "tls", ca.sign("mirror"), ca)
    mirror = await start(cage, tmp_path, **tls)
    await fetched(mirror, hub, ours)
    async with aiohttp.ClientSession() as session:
        async with session.get(url(mirror, FILE), ssl=ours.context) as answer:
            assert await answer.read() == BIG
        with pytest.raises(aiohttp.ClientError):
            await session.get(URL(f"http://{mirror.http}{FILE}", encoded=True))
    with pytest.raises(grpc.aio.AioRpcError):
        async with mirror.stub() as stub:  # plaintext
            await stub.ListVersions(mirror_pb2.ListVersionsRequest(), timeout=5)
    config = str(configured(tmp_path, **tls))
    well = await asyncio.to_thread(run, "healthcheck", "--config", config)
    assert (well.returncode, '"ready"' in well.stdout) == (0, True), well


async def test_new_certificates_are_taken_up_while_files_are_read(
    cage: Cage, hub: Upstream, tmp_path: Path, ca: Authority, ours: WatchedTls
) -> None:
    """D23: no restart, no failed request; a key that does not belong to its certificate changes nothing."""
    tls = put(tmp_path / "tls", ca.sign("first"), ca)
    more = {"registry_url": "http://127.0.0.1:9", "fetch_rate_bytes_s": 10**9}
    mirror = await start(cage, tmp_path, **tls, **more)
    await fetched(mirror, hub, ours)
    name, reader, writer = await shown(mirror, ours)
    assert name == "first"
    writer.write(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    second = ca.sign("second")
    shutil.copy(second.key, tmp_path / "tls" / "tls.key")
    mirror.child.send_signal(signal.SIGHUP)
    await until(lambda: "stays in force" in mirror.child.tail())
    assert (await shown(mirror, ours))[0] == "first"
    _, page = await admin(mirror, "/metrics")
    assert "llmgw_mirror_tls_refused 1.0" in page
    assert "llmgw_mirror_tls_expires_timestamp_seconds" in page
    # All there is: with TLS, a registry and a cap.
    assert metrics_page.scraped(page) == metrics_page.written("mirror")
    put(tmp_path / "tls", second, ca)
    mirror.child.send_signal(signal.SIGHUP)
    await until(lambda: "new TLS files are in force" in mirror.child.tail())
    assert (await shown(mirror, ours))[0] == "second"
    assert "llmgw_mirror_tls_refused 0.0" in (await admin(mirror, "/metrics"))[1]
    assert await reader.readexactly(len(BIG)) == BIG
    writer.close()


async def test_a_reader_over_tls_finishes_although_the_mirror_stops(
    cage: Cage, hub: Upstream, tmp_path: Path, ca: Authority, ours: WatchedTls
) -> None:
    """To begin anew is expensive for a node: what is in this process's buffers has to leave it too."""
    mirror = await start(cage, tmp_path, drain_s=30, **put(tmp_path / "tls", ca.sign("mirror"), ca))
    await fetched(mirror, hub, ours)
    reader, writer = await asyncio.open_connection(
        mirror.http.host, mirror.http.port, ssl=ours.context, limit=1 << 14
    )
    writer.write(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    mirror.child.send_signal(signal.SIGTERM)
    await until(lambda: "stopping" in mirror.child.tail())
    taken = 0
    digest = hashlib.sha256()
    while taken < len(BIG):
        piece = await asyncio.wait_for(reader.read(1 << 20), PATIENCE_S)
        assert piece, f"cut after {taken} bytes:\n{mirror.child.tail()}"
        digest.update(piece)
        taken += len(piece)
        if len(BIG) - taken < 9_000_000:
            await asyncio.sleep(0.005)  # the last of it slowly: it waits in buffers, ours among them
    assert digest.digest() == hashlib.sha256(BIG).digest()
    writer.close()
    await until(lambda: mirror.child.code == 0)


async def test_a_reader_that_takes_nothing_holds_a_stop_for_drain_s_only(
    cage: Cage, hub: Upstream, tmp_path: Path, ca: Authority, ours: WatchedTls
) -> None:
    mirror = await start(cage, tmp_path, drain_s=0.3, **put(tmp_path / "tls", ca.sign("mirror"), ca))
    await fetched(mirror, hub, ours)
    reader, writer = await asyncio.open_connection(
        mirror.http.host, mirror.http.port, ssl=ours.context, limit=1024
    )
    writer.write(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    mirror.child.send_signal(signal.SIGTERM)
    await until(lambda: mirror.child.code is not None)
    assert mirror.child.code == 0
    assert "Traceback" not in mirror.child.tail()
    with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
        await reader.readexactly(len(BIG))
    writer.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tls_key": None}, "needs a certificate and its key"),
        ({"tls_cert": None, "tls_key": None}, "needs a certificate and its key"),
        ({"tls_cert": "/no/such.pem"}, "certificate /no/such.pem"),
        ({"tls_key": "{cert}"}, "cannot be used"),
        ({"tls_client_ca": "{key}"}, "authority"),
    ],
)
def test_files_that_cannot_be_used_stop_the_start(
    tmp_path: Path, ca: Authority, wrong: dict[str, Any], told: str
) -> None:
    tls = put(tmp_path / "tls", ca.sign("mirror"), ca)
    names = {"{cert}": tls["tls_cert"], "{key}": tls["tls_key"]}
    given = {key: names.get(value, value) for key, value in (tls | wrong).items() if value is not None}
    ended: subprocess.CompletedProcess[str] = run("serve", "--config", str(configured(tmp_path, **given)))
    assert ended.returncode == 1
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "store").exists()


async def test_plaintext_beyond_loopback_is_warned_of(cage: Cage, tmp_path: Path, ca: Authority) -> None:
    mirror = await start(cage, tmp_path, http_listen="0.0.0.0:0")
    lines = mirror.child.tail().splitlines()
    assert [line for line in lines if "PLAINTEXT: whoever reaches http on" in line]
    assert not [line for line in lines if "reaches grpc" in line]
    mirror.child.stop()
    half = put(tmp_path / "tls", ca.sign("mirror"), ca)
    del half["tls_client_ca"]
    mirror = await start(cage, tmp_path, "half", http_listen="0.0.0.0:0", **half)
    assert "NOT ASKED WHO THEY ARE: whoever reaches http on" in mirror.child.tail()
    record = json.loads(next((tmp_path / "store" / "run").glob("*.json")).read_text())
    assert record["http"].startswith("0.0.0.0:")
