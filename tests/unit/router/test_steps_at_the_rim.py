"""Steps that nobody above answers for: connecting, deadlines, lost connections. Each ends its exchange."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llmgw_router.core.config import INTERACTIVE, RoutingProfile, WorkerConfig
from llmgw_router.relay import ipc
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.endpoint import EngineEndpoint
from llmgw_router.relay.exchange import Exchange
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.slots import COUNTER, Slots
from llmgw_router.relay.sweep import sweep
from llmgw_router.relay.upstream import UpstreamConnection

from .test_relay_pausing import REQUEST, Wire

LONG_AGO_S = 100.0


class ClientWire(Wire):
    """Taken from at once; an abort is heard of in the same breath."""

    on_abort: Callable[[], None] = staticmethod(lambda: None)

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.closing = True
        self.on_abort()


class Bench:
    """A hub with endpoints of one model and clients; nothing is ever connected but by the test."""

    def __init__(self, endpoints: int = 2) -> None:
        slots = Slots.create(workers=1, capacity=endpoints)
        profile = RoutingProfile(connect_s=5.0, total_s=10.0)
        configure = ipc.Configure(
            worker=0,
            workers=1,
            slot_capacity=endpoints,
            cold_socket="",
            config=WorkerConfig(profiles={INTERACTIVE: profile}),
        )
        self.heard: list[ipc.Up] = []
        self.hub = Hub(configure, slots, asyncio.get_running_loop(), self.heard.append)
        rows = tuple(
            ipc.EndpointRow(
                endpoint_id=f"e{n}@1", replica_id=f"e{n}", group_epoch=1, model="m", host="h", port=1, slot=n
            )
            for n in range(endpoints)
        )
        self.hub.routes.apply(ipc.TableUpdate(endpoints=rows, seq=1))

    def ask(self) -> tuple[ClientConnection, ClientWire]:
        client, wire = ClientConnection(self.hub), ClientWire()
        client.connection_made(wire.as_transport())
        wire.on_abort = lambda: client.connection_lost(None)
        client.data_received(REQUEST)
        return client, wire

    def count(self, name: str) -> int:
        return self.hub.counters[COUNTER[name]]

    def in_flight(self) -> int:
        return sum(endpoint.in_flight for endpoint in self.hub.routes.endpoints())

    def pool(self) -> UpstreamConnection:
        """A connection to the first endpoint that lies ready."""
        (endpoint, *_) = self.hub.routes.endpoints()
        upstream = UpstreamConnection(endpoint)
        upstream.connection_made(Wire().as_transport())
        endpoint.idle.append(upstream)
        return upstream


def connecting(monkeypatch: pytest.MonkeyPatch, connect: Callable[[], Awaitable[UpstreamConnection]]) -> None:
    async def asked(*_: object) -> UpstreamConnection:
        return await connect()

    monkeypatch.setattr(EngineEndpoint, "connect", asked)


async def forever() -> UpstreamConnection:
    await asyncio.Event().wait()
    raise AssertionError


def running(client: ClientConnection) -> tuple[Exchange, EngineEndpoint]:
    exchange = client.current
    assert exchange is not None
    assert isinstance(exchange.endpoint, EngineEndpoint)
    return exchange, exchange.endpoint


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.mark.parametrize("waited_there", [False, True], ids=["elsewhere", "connecting"])
async def test_a_total_that_fires_while_connecting_ejects_nobody_at_once(
    monkeypatch: pytest.MonkeyPatch, waited_there: bool
) -> None:
    """HO13: what was spent in a queue is no fault of the engine that was asked at the end of it."""
    connecting(monkeypatch, forever)
    bench = Bench()
    client, wire = bench.ask()
    exchange, endpoint = running(client)
    exchange.started -= LONG_AGO_S
    if waited_there:
        exchange.since -= LONG_AGO_S
    sweep(bench.hub)
    assert b"deadline_exceeded" in wire.written
    assert (endpoint.ejected, endpoint.failures) == (False, int(waited_there))
    assert bench.in_flight() == 0


async def test_a_retry_after_a_connect_that_took_too_long_is_counted_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connecting(monkeypatch, forever)
    bench = Bench()
    client, _ = bench.ask()
    exchange, first = running(client)
    exchange.since -= LONG_AGO_S
    sweep(bench.hub)
    assert running(client)[1] is not first
    assert (bench.count("retries_connect_timeout"), bench.count("retries_connect")) == (1, 0)
    client.connection_lost(None)


@pytest.mark.parametrize(
    ("error", "status", "retries"),
    [
        (OSError("nobody there"), b"502", 1),
        (UnicodeError("label empty or too long"), b"502", 1),
        (ZeroDivisionError("ours"), b"500", 0),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_goes_wrong_in_connecting_is_answered(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: bytes, retries: int
) -> None:
    async def fails() -> UpstreamConnection:
        raise error

    connecting(monkeypatch, fails)
    bench = Bench()
    client, wire = bench.ask()
    await turns()
    assert wire.written.startswith(b"HTTP/1.1 " + status)
    assert client.current is None
    assert (bench.in_flight(), bench.count("retries_connect")) == (0, retries)


@pytest.mark.parametrize("where", ["answer_lost", "blame"])
async def test_a_bug_at_a_lost_connection_is_answered_and_gives_the_endpoint_back(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    bench = Bench(1)
    upstream = bench.pool()
    client, wire = bench.ask()
    if where == "blame":
        monkeypatch.setattr("llmgw_router.relay.exchange.blame", broken)
    else:
        monkeypatch.setattr(Exchange, where, broken)
    upstream.connection_lost(None)
    assert wire.written.startswith(b"HTTP/1.1 500")
    assert client.current is None
    assert bench.in_flight() == 0
