"""Back-pressure by the letter: transports here do at once what a real one does when buffers are full."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from llmgw_router.relay import ipc
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.slots import Slots
from llmgw_router.relay.upstream import UpstreamConnection

REQUEST = b'POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 13\r\n\r\n{"model":"m"}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire:
    """A transport that keeps what is written and remembers whether it reads."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.closing = False
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.written += data
        self.on_write()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 1

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def as_transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self)


class Pair:
    """A client and one pooled upstream connection, wired up in one hub."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        slots = Slots.create(workers=1, capacity=1)
        configure = ipc.Configure(worker=0, workers=1, slot_capacity=1, cold_socket="")
        hub = Hub(configure, slots, loop, lambda message: None)
        row = ipc.EndpointRow(
            endpoint_id="e@1", replica_id="e", group_epoch=1, model="m", host="h", port=1, slot=0
        )
        hub.routes.apply(ipc.TableUpdate(endpoints=(row,), seq=1))
        (self.endpoint,) = hub.routes.targets["m"].endpoints
        self.up_wire, self.client_wire = Wire(), Wire()
        self.upstream = UpstreamConnection(self.endpoint)
        self.upstream.connection_made(self.up_wire.as_transport())
        self.endpoint.idle.append(self.upstream)
        self.client = ClientConnection(hub)
        self.client.connection_made(self.client_wire.as_transport())


@pytest.fixture
async def pair() -> Pair:
    return Pair(asyncio.get_running_loop())


async def test_a_slow_client_pauses_its_engine_and_wakes_it(pair: Pair) -> None:
    pair.client.data_received(REQUEST)
    pair.upstream.data_received(HEAD + b"3\r\n: x\r\n")
    pair.client.pause_writing()
    assert not pair.up_wire.reading
    pair.client.resume_writing()
    assert pair.up_wire.reading


async def test_a_client_slow_at_the_last_bytes_does_not_pause_what_lies_in_the_pool(pair: Pair) -> None:
    pair.client.data_received(REQUEST)
    pair.upstream.data_received(HEAD + b"3\r\n: x\r\n")
    pair.client_wire.on_write = pair.client.pause_writing
    pair.upstream.data_received(b"3\r\n: y\r\n0\r\n\r\n")
    assert pair.endpoint.idle == [pair.upstream]
    assert pair.up_wire.reading


async def test_the_next_answer_waits_until_the_last_has_been_taken(pair: Pair) -> None:
    pair.client.pause_writing()
    pair.client.data_received(REQUEST)
    assert pair.up_wire.written.startswith(b"POST ")
    assert not pair.up_wire.reading
    pair.client.resume_writing()
    assert pair.up_wire.reading


@pytest.mark.parametrize("slow", [False, True])
async def test_a_slow_reader_does_not_make_its_engine_slow(pair: Pair, slow: bool) -> None:
    """Of a stream that was ever held back, the bytes a second are the client's."""
    pair.client.data_received(REQUEST)
    pair.upstream.data_received(HEAD + b"9\r\ndata: x\n\n\r\n")
    exchange = pair.client.current
    assert exchange is not None
    exchange.first_ns -= 10**9
    if slow:
        pair.client.pause_writing()
        pair.client.resume_writing()
    pair.upstream.data_received(b"0\r\n\r\n")
    assert pair.endpoint.speed.rates == (0 if slow else 1)
