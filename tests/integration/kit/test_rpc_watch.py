"""A peer that cannot be reached: the step that fails is the reason; told once, and so is its end (M24)."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw_kit import rpc, rpc_watch
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import SystemClock
from llmgw_kit.rpc_watch import PeerWatch
from llmgw_kit.testing.authority import Authority
from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.testing.ports import free_ports
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_watch import Side, WatchedTls


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def peer(tls: WatchedTls | None = None, *, port: int = 0) -> AsyncIterator[HostPort]:
    server = rpc.server()
    health = rpc.Health(server, [])
    address = rpc.listen(server, HostPort("127.0.0.1", port), flag="--listen", tls=tls)
    await server.start()
    await health.set_serving(True)
    try:
        yield address
    finally:
        await server.stop(None)


async def why(address: HostPort, tls: WatchedTls | None = None, name: str | None = None) -> str | None:
    watch = PeerWatch(address, what="the mirror", clock=SystemClock(), tls=tls, name=name)
    await watch.look()
    assert watch.reachable is (watch.trouble is None)
    return watch.trouble.why if watch.trouble is not None else None


async def test_one_that_answers_is_no_trouble(ca: Authority) -> None:
    tls = WatchedTls(ca.sign("ours").trusting(ca.cert), Side.CLIENT, what="tls")
    async with peer() as address:
        assert await why(address) is None
    async with peer(WatchedTls(ca.sign("it").trusting(ca.cert), Side.SERVER, what="tls")) as address:
        assert await why(address, tls) is None


async def test_a_name_that_nobody_knows() -> None:
    assert (await why(HostPort("no-such-host.invalid", 7071)) or "").startswith(
        "no-such-host.invalid cannot be resolved: "
    )


async def test_a_port_where_nobody_listens() -> None:
    (port,) = free_ports(1)
    said = await why(HostPort("127.0.0.1", port))
    assert said == "no connection: connection refused"


async def test_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_watch, "_STEP_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert await why(HostPort(*silent.getsockname())) is not None


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("plaintext", "it does not speak TLS"),
        ("another authority", "its certificate is not accepted: unable to get local issuer certificate"),
        ("another name", "its certificate is not accepted: IP address mismatch"),
        ("expired", "its certificate is not accepted: certificate has expired"),
        ("we show none", "it does not accept our certificate"),
        ("we show an unknown one", "it does not accept our certificate"),
    ],
)
async def test_what_is_wrong_with_tls(tmp_path: Path, ca: Authority, case: str, told: str) -> None:
    """F4: to gRPC most of these are a socket that was closed."""
    other = Authority(tmp_path, "other")
    good, mine = ca.sign("good"), ca.sign("mine")
    pair = {
        "another name": ca.sign("else", names="DNS:else.test"), "expired": ca.sign("over", days="-1"),
        "another authority": other.sign("alien"),
    }.get(case, good)  # fmt: skip
    served = WatchedTls(pair.trusting(ca.cert), Side.SERVER, what="tls") if case != "plaintext" else None
    shown = {
        "we show none": TlsFiles(ca=ca.cert),
        "we show an unknown one": other.sign("us").trusting(ca.cert),
    }
    ours = WatchedTls(shown.get(case, mine.trusting(ca.cert)), Side.CLIENT, what="tls")
    async with peer(served) as address:
        said = await why(address, ours)
    assert said is not None
    assert said.startswith(told)


async def test_plaintext_to_a_peer_with_tls_is_trouble(ca: Authority) -> None:
    async with peer(WatchedTls(ca.sign("it2").trusting(ca.cert), Side.SERVER, what="tls")) as address:
        assert await why(address) is not None


async def test_told_once_with_since_when_and_what_next_and_once_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (port,) = free_ports(1)
    clock = FakeClock(unix_s=1_800_000_000)
    watch = PeerWatch(HostPort("127.0.0.1", port), what="the mirror", clock=clock)
    running = asyncio.create_task(watch.run())

    async def looked() -> None:
        async with asyncio.timeout(20):
            while not clock.sleepers:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO, logger="llmgw_kit.rpc_watch"):
        for step_s in (1, 2, 4):
            await looked()
            await clock.advance(step_s)
        await looked()
        (warned,) = caplog.messages
        assert warned.startswith(f"the mirror at 127.0.0.1:{port} cannot be reached: no connection: ")
        assert warned.endswith("; since 2027-01-15 08:00:00 UTC, next try in 1 s")
        assert watch.trouble is not None
        assert watch.trouble.since == 1_800_000_000
        async with peer(port=port):
            for step_s in (8, 15):
                await clock.advance(step_s)
                await looked()
        assert caplog.messages[1:] == [f"the mirror at 127.0.0.1:{port} is reached again, after 15 s"]
    assert watch.reachable
    running.cancel()


async def test_a_reason_that_stays_is_told_again_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    watch = PeerWatch(HostPort("127.0.0.1", port), what="the mirror", clock=FakeClock())
    with caplog.at_level(logging.INFO, logger="llmgw_kit.rpc_watch"):
        for _ in range(20):
            await watch.look()
    assert len(caplog.messages) == 3
