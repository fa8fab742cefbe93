"""The real program: its life and deaths, its listeners, its command line, its gRPC."""

from __future__ import annotations  # the stubs' asynchronous types exist in their type stubs only

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml
from aiohttp import web
from yarl import URL

from llmgw.v1 import common_pb2, mirror_pb2, mirror_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound
from llmgw_kit.testing.processes import Cage, Child
from llmgw_mirror.composition_serving import Offer
from llmgw_mirror.serving import serve
from llmgw_mirror.settings import MirrorSettings

from . import scripted
from .scripted import Upstream
from .world import PATIENCE_S, content_of, sha256_of

BIG = content_of(3_000_000)
SHA = sha256_of(BIG)
PROGRAM = [sys.executable, "-P", "-m", "llmgw_mirror.main"]
#: Of a program on a machine where everything else is being tested at once.
START_S = 60.0


@dataclass
class Running:
    child: Child
    grpc: HostPort
    http: HostPort
    admin: HostPort

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[mirror_pb2_grpc.MirrorServiceAsyncStub]:
        channel = rpc.channel(self.grpc)
        try:
            yield mirror_pb2_grpc.MirrorServiceStub(channel)
        finally:
            await channel.close()

    async def fetch(self, *files: common_pb2.WeightsSource, version: str = "v1") -> mirror_pb2.WeightsVersion:
        async with self.stub() as stub:
            request = mirror_pb2.FetchRequest(model="org/m", version=version, files=files)
            try:
                return (await stub.Fetch(request, timeout=10)).version
            except grpc.aio.AioRpcError as e:
                raise rpc.error_from(e, peer="mirror") from None

    async def get(self, path: str, at: HostPort | None = None) -> tuple[int, bytes]:
        url = URL(f"http://{at or self.http}{path}", encoded=True)
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.read()

    async def settled(self, *, at_least: int | None = None) -> tuple[int, dict[str, Any]]:
        """Until the version is present or failed, or so many bytes are here."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, body = await self.get("/v1/weights/org%2Fm/v1")
                said = json.loads(body)
                if status != 503 or (at_least is not None and said["received_bytes"] >= at_least):
                    return status, said
                await asyncio.sleep(0.02)


def configured(folder: Path, name: str = "mirror", **settings: Any) -> Path:
    """A configuration file; listeners on ports of the system's."""
    given = {
        "data_dir": str(folder / "store"),
        "listen": "127.0.0.1:0",
        "http_listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "backoff_base_s": 0.01,
        "disk_reserve_bytes": 0,
        **settings,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


async def start(
    cage: Cage, folder: Path, name: str = "mirror", *, argv: tuple[str, ...] = (), **settings: Any
) -> Running:
    """Start one and wait until it says where it listens."""
    config = configured(folder, name, **settings)
    log = folder / f"{name}.log"
    seen = log.stat().st_size if log.exists() else 0
    child = cage.spawn(name, [*argv, *PROGRAM, "serve", "--config", str(config)], log=log)
    async with asyncio.timeout(START_S):
        while True:
            assert child.code is None, f"the mirror ended with {child.code}:\n{child.tail()}"
            lines = log.read_bytes()[seen:].decode().splitlines() if log.exists() else []
            if any(" metrics: " in line for line in lines):
                break
            await asyncio.sleep(0.02)
    found = {
        word: parse_host_port(line.rsplit(f"{word}: ", 1)[1], what=word)
        for word in ("grpc", "http", "admin")
        for line in lines
        if f"serving: {word}: " in line
    }
    return Running(child, **found)


def source(path: str, url: str, **published: Any) -> common_pb2.WeightsSource:
    return common_pb2.WeightsSource(path=path, url=url, **published)


async def test_kill_9_in_mid_fetch_and_on_it_goes(cage: Cage, hub: Upstream, tmp_path: Path) -> None:
    hub.acts.append(scripted.stall(2_000_000))
    first = await start(cage, tmp_path)
    await first.fetch(source("w.bin", hub.put("/w", BIG)))
    await first.settled(at_least=2_000_000)
    # What was received is written a megabyte at a time.
    first.child.kill()
    await first.child.wait(PATIENCE_S)
    second = await start(cage, tmp_path)
    status, said = await second.settled()
    assert (status, said["state"]) == (200, "present"), said
    assert hub.requests[1].first_byte >= 1 << 20
    assert await second.get("/v1/weights/org%2Fm/v1/files/w.bin") == (200, BIG)
    # A stop is a clean end, and takes its note along.
    assert await asyncio.to_thread(second.child.stop, grace_s=PATIENCE_S) == 0
    assert list((tmp_path / "store" / "run").iterdir()) == []
    assert list((tmp_path / "store" / "parts").iterdir()) == []


async def test_a_hangup_ends_no_mirror_that_has_no_tls_files(cage: Cage, tmp_path: Path) -> None:
    mirror = await start(cage, tmp_path)
    mirror.child.send_signal(signal.SIGHUP)
    async with asyncio.timeout(PATIENCE_S):
        while "nothing is read again" not in mirror.child.tail():
            assert mirror.child.code is None
            await asyncio.sleep(0.02)
    assert (await mirror.get("/readyz"))[0] == 200
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0


async def test_a_start_that_fails_half_way_closes_what_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the mirror notes its addresses there is a file; everything listens by then."""
    closed: list[str] = []
    for owner, name in ((web.AppRunner, "cleanup"), (Offer, "close")):
        monkeypatch.setattr(owner, name, noting(closed, getattr(owner, name)))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "run").write_bytes(b"")
    before = asyncio.all_tasks()
    given = yaml.safe_load(configured(tmp_path).read_text())
    with pytest.raises(OSError, match="run"):
        await serve(MirrorSettings.model_validate(given))
    assert closed == ["cleanup", "cleanup", "close"], "both listeners, then what they served"
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not left & {"passes", "pieces", "suspects", "scrub"}


def noting(into: list[str], real: Any) -> Any:
    """The same, and its name in the list."""

    async def noted(*args: Any) -> None:
        into.append(real.__name__)
        await real(*args)

    return noted


async def test_another_mirror_takes_over_from_one_that_was_killed(
    cage: Cage, hub: Upstream, tmp_path: Path, migrated_dsn: str
) -> None:
    hub.acts.append(scripted.stall(2_000_000))
    shared: dict[str, Any] = {"dsn": migrated_dsn, "lease_ttl_s": 2.0}
    one = await start(cage, tmp_path, "one", **shared)
    two = await start(cage, tmp_path, "two", **shared)
    await one.fetch(source("w.bin", hub.put("/w", BIG), sha256=SHA))
    await one.settled(at_least=2_000_000)
    one.child.kill()
    status, said = await two.settled()
    assert (status, said["state"]) == (200, "present")
    assert len(hub.requests) == 2
    assert hub.requests[1].first_byte >= 1 << 20
    assert await two.get("/v1/weights/org%2Fm/v1/files/w.bin") == (200, BIG)
    two.child.stop()


async def test_grpc(cage: Cage, hub: Upstream, tmp_path: Path) -> None:
    mirror = await start(cage, tmp_path)
    hub.acts_on["/w"] = scripted.stall(1_500_000)
    files = [source("w.bin", hub.put("/w", BIG), sha256=SHA), source("c.json", hub.put("/c", b"{}"))]
    version = await mirror.fetch(*files)
    assert version.state == mirror_pb2.WEIGHTS_STATE_FETCHING
    await mirror.settled(at_least=1_500_002)
    while (await mirror.get("/v1/weights/org%2Fm/v1/files/c.json"))[0] == 503:
        await asyncio.sleep(0.02)
    async with mirror.stub() as stub:
        (moving,) = (await stub.ListDownloads(mirror_pb2.ListDownloadsRequest(), timeout=10)).versions
        (file,) = moving.files
        assert (file.path, file.state) == ("w.bin", mirror_pb2.WEIGHTS_STATE_FETCHING)
        assert (file.received_bytes, file.size_bytes) == (1_500_000, len(BIG))
        assert not file.HasField("sha256")
        remove = mirror_pb2.RemoveVersionRequest(model="org/m", version="v1")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.RemoveVersion(remove, timeout=10)
        told = rpc.error_from(refused.value, peer="mirror")
        assert isinstance(told, Conflict)
        assert told.code == "being_fetched"
        everything = await stub.ListVersions(mirror_pb2.ListVersionsRequest(), timeout=10)
        assert everything.disk_free_bytes > 0
        by_path = {file.path: file for file in everything.versions[0].files}
        assert by_path["c.json"].state == mirror_pb2.WEIGHTS_STATE_PRESENT
        assert by_path["c.json"].sha256 == sha256_of(b"{}")
        other = await stub.ListVersions(mirror_pb2.ListVersionsRequest(model="other"), timeout=10)
        assert not other.versions
        gone = mirror_pb2.RemoveVersionRequest(model="org/m", version="v9")
        with pytest.raises(grpc.aio.AioRpcError) as absent:
            await stub.RemoveVersion(gone, timeout=10)
        assert isinstance(rpc.error_from(absent.value, peer="mirror"), NotFound)
    for hostile in ("../../etc/x", "a\\b", "/x", "nul"):
        with pytest.raises(InvalidRequest, match="is refused"):
            await mirror.fetch(source(hostile, hub.url("/w")), version="v2")
    with pytest.raises(LlmgwError, match="known with other files"):
        await mirror.fetch(source("w.bin", hub.url("/w")))
    status, body = await mirror.get("/metrics", mirror.admin)
    assert status == 200
    assert b'llmgw_mirror_files{state="fetching"}' in body
    assert (await mirror.get("/readyz", mirror.admin))[0] == 200
    assert (await mirror.get("/healthz"))[0] == 200
    assert (await mirror.get("/metrics"))[0] == 404
    # A fetch that stalls does not hold a stop up.
    assert await asyncio.to_thread(mirror.child.stop, grace_s=PATIENCE_S) == 0


async def test_a_full_disk_stops_one_file_and_not_the_others(
    cage: Cage, hub: Upstream, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the end of the disk: both are an error of write(2)."""
    limited = ("import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000,) * 2); "
               "os.execv(sys.argv[1], sys.argv[1:])")  # fmt: skip
    mirror = await start(cage, tmp_path, argv=(sys.executable, "-c", limited))
    await mirror.fetch(source("w.bin", hub.put("/w", BIG)), source("c.json", hub.put("/c", b"{}")))
    status, said = await mirror.settled()
    assert status == 502
    assert "w.bin: the disk is full (File too large)" in said["error"]
    assert "c.json" not in said["error"]
    assert await mirror.get("/v1/weights/org%2Fm/v1/files/c.json") == (200, b"{}")
    mirror.child.stop()
    # With room again it goes on with what was kept.
    roomy = await start(cage, tmp_path)
    await roomy.fetch()
    assert (await roomy.settled())[0] == 200
    assert hub.requests[-1].first_byte > 1 << 20
    roomy.child.stop()


def run(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=START_S, check=False,
        env=os.environ | (environ or {}),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["listen", "http_listen", "admin_listen", "metrics_listen"])
def test_a_taken_port_is_named_with_what_moves_it(tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("serve", "--config", str(configured(tmp_path, **{name: f"127.0.0.1:{port}"})))
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert f"--{name.replace('_', '-')} HOST:PORT" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "store" / "run").exists()


def test_what_stops_the_start_and_in_which_words(tmp_path: Path) -> None:
    silent = configured(tmp_path, dsn="postgresql://u:geheim@127.0.0.1:1/d", dsn_patience_s=0.1)
    ended = run("serve", "--config", str(silent))
    assert ended.returncode == 1
    assert "Postgres at postgresql://u@127.0.0.1:1/d did not answer" in ended.stderr
    assert "geheim" not in ended.stderr
    (tmp_path / "file").write_text("x")
    ended = run("serve", "--config", str(configured(tmp_path, data_dir=str(tmp_path / "file" / "store"))))
    assert ended.returncode == 1
    assert f"data_dir {tmp_path / 'file' / 'store'} cannot be used" in ended.stderr
    ended = run("serve", "--config", str(configured(tmp_path, data_directory="/x")))
    assert ended.returncode == 1
    assert "data_dir" in ended.stderr
    ended = run("serve", environ={"LLMGW_MIRROR_LISTEN": "tcp://10.0.0.1:7071"})
    assert ended.returncode == 1
    assert "enableServiceLinks" in ended.stderr


async def test_the_other_commands(cage: Cage, hub: Upstream, tmp_path: Path, migrated_dsn: str) -> None:
    config = configured(tmp_path, dsn=migrated_dsn)
    mirror = await start(cage, tmp_path, dsn=migrated_dsn)
    await mirror.fetch(
        source("w.bin", hub.put("/w", BIG), sha256=SHA), source("c.json", hub.put("/c", b"{}"))
    )
    assert (await mirror.settled())[0] == 200

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, "--config", str(config))

    well = await asyncio.to_thread(command, "healthcheck")
    assert (well.returncode, '"ready"' in well.stdout) == (0, True), well
    mirror.child.stop()
    ill = await asyncio.to_thread(command, "healthcheck")
    assert ill.returncode == 1
    fine = await asyncio.to_thread(command, "rescan")
    assert fine.returncode == 0, fine.stderr
    assert "org/m v1: present, 2 of 2 files, 3000002 bytes" in fine.stdout
    assert "recorded in Postgres" in fine.stdout
    blob = tmp_path / "store" / "blobs" / "sha256" / SHA[:2] / SHA
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"!")
    quick = await asyncio.to_thread(command, "rescan", "--quick")
    assert quick.returncode == 0
    bad = await asyncio.to_thread(command, "rescan")
    assert bad.returncode == 1
    assert "w.bin: damaged, it hashes to" in bad.stdout
    assert not blob.exists()
    shown = await asyncio.to_thread(command, "serve", "--print-config")
    assert "dsn: '********'" in shown.stdout
    # The next start fetches what was found damaged.
    again = await start(cage, tmp_path, dsn=migrated_dsn)
    assert (await again.settled())[0] == 200
    assert blob.read_bytes() == BIG
    again.child.stop()
