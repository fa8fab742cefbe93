"""A controller that is configured with a mirror: what stops its start, what it only warns of (M24), and its
certificate, which may change while it runs (D23)."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

import asyncio
import shutil
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from llmgw.v1 import mirror_pb2, mirror_pb2_grpc
from llmgw_controller.adapters.mirror_grpc import GrpcMirror
from llmgw_controller.core.catalog import Model
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.lifecycle import probe
from llmgw_kit.testing.authority import Authority, Pair
from llmgw_kit.testing.ports import free_ports
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_watch import Side, WatchedTls

from .controller_bench import Controllers, until
from .test_controller_start import config, run


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def files(ca: Authority, pair: Pair) -> dict[str, str]:
    return {
        "mirror_tls_ca": str(ca.cert), "mirror_tls_cert": str(pair.cert), "mirror_tls_key": str(pair.key),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mirror": "mirror", "mirror_url": "http://m:8071"}, "has no port; expected HOST:PORT"),
        ({"mirror": "grpc://mirror:7071", "mirror_url": "http://m:8071"}, "expected HOST:PORT"),
        ({"mirror": "mirror:7071", "mirror_url": "ftp://m:8071"}, "expected http://HOST:PORT"),
        ({"mirror": "mirror:70711", "mirror_url": "http://m:8071"}, "expected a number from 0 to 65535"),
        (
            {"mirror": "m:1", "mirror_url": "http://m:2", "mirror_tls_ca": "/no/ca.pem"},
            "authority /no/ca.pem cannot be used",
        ),
    ],
    ids=["syntax", "scheme", "scheme for nodes", "port", "TLS files"],
)
def test_bad_syntax_scheme_port_and_files_stop_the_start(
    tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    ended = run("serve", "--config", config(tmp_path, **settings))
    assert ended.returncode != 0
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


class Mirror(mirror_pb2_grpc.MirrorServiceServicer):
    """Notes who asks; has the one call that a controller makes."""

    def __init__(self) -> None:
        self.asked_by: list[str] = []

    async def Fetch(self, request: mirror_pb2.FetchRequest, context: Any) -> mirror_pb2.FetchResponse:
        names = context.auth_context().get("x509_common_name", [b"nobody"])
        self.asked_by.append(names[0].decode())
        return mirror_pb2.FetchResponse()


async def mirror(port: int, tls: WatchedTls) -> tuple[grpc.aio.Server, Mirror]:
    server, servicer = rpc.server(), Mirror()  # type: ignore[abstract]
    mirror_pb2_grpc.add_MirrorServiceServicer_to_server(servicer, server)
    health = rpc.Health(server, [])
    rpc.listen(server, HostPort("127.0.0.1", port), flag="--listen", tls=tls)
    await server.start()
    await health.set_serving(True)
    return server, servicer


async def test_one_that_is_away_is_warned_of_and_its_return_told_once(
    controllers: Controllers, ca: Authority
) -> None:
    (port,) = free_ports(1)
    one = controllers.start(
        mirror=f"127.0.0.1:{port}", mirror_url="http://127.0.0.1:8071", **files(ca, ca.sign("controller"))
    )
    await one.until_ready()

    def log() -> str:
        return one.child.log.read_text()

    await until("a warning", lambda: "cannot be reached: no connection: connection refused; since" in log())
    assert "next try in" in log()
    server, _ = await mirror(port, WatchedTls(ca.sign("m").trusting(ca.cert), Side.SERVER, what="tls"))
    await until("its return", lambda: "is reached again, after" in log())
    _, text = await asyncio.to_thread(probe, one.admin, "/readyz")
    assert "ready" in text
    await server.stop(None)
    assert log().count("is reached again") == 1


async def test_a_name_that_nobody_knows_is_no_reason_not_to_start(controllers: Controllers) -> None:
    one = controllers.start(mirror="no-such-host.invalid:7071", mirror_url="http://127.0.0.1:8071")
    await one.until_ready()
    await until("a warning", lambda: "no-such-host.invalid cannot be resolved" in one.child.log.read_text())


async def test_a_new_certificate_is_shown_with_the_next_call(
    tmp_path: Path, ca: Authority, weighty: Model
) -> None:
    """D23, F2: a channel keeps what it was made with, so there is another."""

    def put(pair: Pair) -> None:
        shutil.copy(pair.key, tmp_path / "tls.key")
        shutil.copy(pair.cert, tmp_path / "tls.crt")

    (port,) = free_ports(1)
    server, servicer = await mirror(
        port, WatchedTls(ca.sign("it").trusting(ca.cert), Side.SERVER, what="tls")
    )
    put(ca.sign("old"))
    ours = WatchedTls(
        TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", ca.cert), Side.CLIENT, what="mirror_tls"
    )
    client = GrpcMirror(HostPort("127.0.0.1", port), tls=ours)
    await client.fetch(weighty)
    await client.fetch(weighty)
    put(ca.sign("new"))
    assert ours.refresh()
    await client.fetch(weighty)
    assert servicer.asked_by == ["old", "old", "new"]
    await client.close()
    await server.stop(None)


@pytest.fixture
def weighty() -> Model:
    """A model with weights to fetch."""
    from llmgw_controller.catalog_file import parse_models

    (model,) = parse_models(
        [
            {
                "name": "m",
                "weights": {"version": "v1", "files": [{"path": "w.bin", "url": "http://127.0.0.1:1/w"}]},
                "profiles": [{"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"]}],
            }
        ],
        where="test",
    )
    return model
