"""gRPC over mutual TLS: who may call, by which name, and certificates replaced under open streams
(F1, F2, D23)."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.testing.authority import Authority, Pair
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_watch import Material, Side, WatchedTls

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def ours(ca: Authority) -> Material:
    return WatchedTls(ca.sign("client").trusting(ca.cert), Side.CLIENT, what="client").now


@asynccontextmanager
async def serving(tls: WatchedTls) -> AsyncIterator[HostPort]:
    server = rpc.server()
    health = rpc.Health(server, [])
    address = rpc.listen(server, HostPort("127.0.0.1", 0), flag="--listen", tls=tls)
    await server.start()
    await health.set_serving(True)
    try:
        yield address
    finally:
        await server.stop(None)


def stub(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)  # its calls are in no stub


async def asked(address: HostPort, tls: Material | None, name: str | None = None) -> int:
    channel = rpc.channel(address, tls=tls, name=name)
    try:
        answer = await stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    finally:
        await rpc.close_quietly(channel)
    return int(answer.status)


async def test_a_certificate_of_the_authority_is_let_in(ca: Authority, ours: Material) -> None:
    async with serving(WatchedTls(ca.sign("server").trusting(ca.cert), Side.SERVER, what="tls")) as address:
        assert await asked(address, ours) == health_pb2.HealthCheckResponse.SERVING


async def test_nobody_else_is(tmp_path: Path, ca: Authority) -> None:
    stranger = Authority(tmp_path, "stranger").sign("client")
    without = WatchedTls(TlsFiles(ca=ca.cert), Side.CLIENT, what="client").now
    alien = WatchedTls(stranger.trusting(ca.cert), Side.CLIENT, what="client").now
    served = WatchedTls(ca.sign("server").trusting(ca.cert), Side.SERVER, what="tls")
    async with serving(served) as address:
        for tls in (without, alien, None):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await asked(address, tls)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_goes_by_its_address_or_by_the_name_that_is_expected(
    ca: Authority, ours: Material
) -> None:
    pair = ca.sign("named", names="DNS:mirror.test")
    async with serving(WatchedTls(pair.trusting(ca.cert), Side.SERVER, what="tls")) as address:
        with pytest.raises(grpc.aio.AioRpcError):
            await asked(address, ours)
        with pytest.raises(grpc.aio.AioRpcError):
            await asked(address, ours, "another.test")
        assert await asked(address, ours, "mirror.test") == health_pb2.HealthCheckResponse.SERVING


async def test_a_replaced_certificate_is_shown_and_open_streams_go_on(
    tmp_path: Path, ca: Authority, ours: Material
) -> None:
    """D23: each side's certificate changes, no call fails, nothing is restarted."""

    def put(pair: Pair) -> None:
        for source, name in ((pair.key, "tls.key"), (pair.cert, "tls.crt")):
            shutil.copy(source, tmp_path / name)

    put(ca.sign("first", names="DNS:first.test"))
    served = WatchedTls(
        TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", ca.cert), Side.SERVER, what="tls"
    )
    async with serving(served) as address:
        channel = rpc.channel(address, tls=ours, name="first.test")
        stream = stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await asyncio.wait_for(stream.read(), PATIENCE_S)).status == 1
        put(ca.sign("second", names="DNS:second.test"))
        assert served.refresh()
        assert await asked(address, ours, "second.test") == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await asked(address, ours, "first.test")
        # The old connection: its stream stands, and takes new calls.
        answer = await stub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert answer.status == 1
        stream.cancel()
        await rpc.close_quietly(channel)
