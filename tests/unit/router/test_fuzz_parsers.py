"""No message may mean two things: the real parsers on both sides against aiohttp's (W51, W52, HO18).

What a client sends reaches an engine as aiohttp would read it, or is refused; how the bytes were cut on the
way changes nothing. What an engine sends is passed on as aiohttp would read it, or told as broken.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given

from llmgw_router.core.paths import split
from llmgw_router.relay import ipc
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.slots import Slots
from llmgw_router.relay.upstream import UpstreamConnection

from .fuzzing import Read, cuts, deep, pieces, read_by_aiohttp, requests, response_by_aiohttp, responses
from .test_relay_pausing import Wire

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class EngineWire(Wire):
    """The router's end of a connection to an engine; keeps each write, and that an answer is due."""

    def __init__(self, sent: list[bytes]) -> None:
        super().__init__()
        self._sent = sent
        self.due = False

    def write(self, data: bytes) -> None:
        self._sent.append(bytes(data))
        self.due = True

    def get_write_buffer_size(self) -> int:
        return 0


class ClientWire(Wire):
    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0


class Rig:
    """A hub, an engine and a cold application that answer at once, and what passed through them."""

    def __init__(self, *, noting: bool = True) -> None:
        self.loop = asyncio.new_event_loop()
        self._slots = Slots.create(workers=1, capacity=1)
        configure = ipc.Configure(worker=0, workers=1, slot_capacity=1, cold_socket="")
        self.hub = Hub(configure, self._slots, self.loop, self._hear)
        row = ipc.EndpointRow(
            endpoint_id="e@1", replica_id="e", group_epoch=1, model="m", host="h", port=1, slot=0
        )
        self.hub.routes.apply(ipc.TableUpdate(endpoints=(row,), seq=1))
        (self.engine,) = self.hub.routes.targets["m"].endpoints
        self._begin = self.hub.begin
        if noting:
            self.hub.begin = self._note  # type: ignore[method-assign]
        self.begun: list[tuple[bool, bytes, bytes, bytes]] = []
        self.sent: list[bytes] = []

    @staticmethod
    def _hear(message: ipc.Up) -> None:
        if isinstance(message, ipc.LogLines):
            assert not [line for line in message.lines if line.level >= logging.ERROR], message

    def close(self) -> None:
        self.loop.close()

    def _note(self, exchange: Any) -> None:
        self.begun.append((exchange.refusal is None, exchange.method, exchange.url, bytes(exchange.body)))
        self._begin(exchange)

    def feed(self, parts: list[bytes]) -> ClientWire:
        """One client connection that sends these; an engine's answer comes between two of them."""
        self.begun, self.sent = [], []
        upstreams = []
        for endpoint in (self.engine, self.hub.cold):
            endpoint.idle.clear()
            # More than are needed: after an answer to HEAD one is not used again.
            for _ in range(8):
                engine = EngineWire(self.sent)
                upstream = UpstreamConnection(endpoint)
                upstream.connection_made(engine.as_transport())
                endpoint.idle.append(upstream)
                upstreams.append((upstream, engine))
        client, wire = ClientConnection(self.hub), ClientWire()
        client.connection_made(wire.as_transport())
        for part in parts:
            if wire.closing:
                break
            client.data_received(part)
            while any(engine.due for _, engine in upstreams):
                for upstream, engine in upstreams:
                    if engine.due:
                        engine.due = False
                        upstream.data_received(ANSWER)
        client.connection_lost(None)
        self.hub.flush()
        assert self.engine.in_flight == 0
        return wire


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def accepted(rig: Rig) -> list[Read]:
    """What the router took for requests, up to the first that it refused by its form."""
    found = []
    for fine, method, url, body in rig.begun:
        if not fine:
            break
        found.append(Read((method, url), (), body))
    return found


def meaning(one: Read) -> tuple[bytes, bytes, bytes]:
    return one.first[0], one.first[1], one.body


@deep
@given(requests, cuts)
def test_requests_mean_what_aiohttp_says_or_are_refused(rig: Rig, data: bytes, at: list[int]) -> None:
    rig.feed(pieces(data, at))
    ours = [meaning(one) for one in accepted(rig)]
    theirs = [meaning(one) for one in read_by_aiohttp(data, rig.loop)]
    assert ours == theirs[: len(ours)]
    plainly = [meaning(one) for one in read_by_aiohttp(data, rig.loop, plain=True)]
    assert ours[: len(plainly)] == plainly[: len(ours)]
    # And each that was sent on is one message with one framing, to whoever reads it.
    assert len(rig.sent) <= len(ours)
    left = iter(ours)
    for sent in rig.sent:
        (read,) = read_by_aiohttp(sent, rig.loop)
        assert len(read.all(b"host")) == 1
        assert len(read.all(b"content-length")) <= 1
        assert read.all(b"transfer-encoding") == read.all(b"connection") == read.all(b"upgrade") == []
        method, target = read.first
        assert any(
            (method, target, read.body) == (one[0], b"".join(split(one[1])), one[2]) for one in left
        ), sent


@deep
@given(requests, cuts)
def test_where_the_bytes_are_cut_changes_nothing(rig: Rig, data: bytes, at: list[int]) -> None:
    rig.feed([data])
    whole, sent = list(rig.begun), list(rig.sent)
    rig.feed(pieces(data, at))
    assert [one[1:] for one in rig.begun if one[0]] == [one[1:] for one in whole if one[0]]
    assert [one.split(b"x-request-id")[0] for one in rig.sent] == [
        one.split(b"x-request-id")[0] for one in sent
    ]


class Exchange:
    """Stands where an exchange would, and keeps what it is told."""

    method = b"POST"
    asking = None

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.body = b""
        self.outcome: str | None = None
        self.status = 0
        self.upstream: UpstreamConnection | None = None

    def answer_wanted(self, connection: UpstreamConnection) -> bool:
        return True

    def answer_came(self, connection: UpstreamConnection, payload: bytes) -> None:
        assert self.outcome is None
        self.status = connection.status
        self.body += payload

    def answer_ended(self, connection: UpstreamConnection, payload: bytes) -> None:
        self.answer_came(connection, payload)
        self.outcome = "whole"

    def answer_closed(self, connection: UpstreamConnection) -> None:
        assert self.outcome is None
        self.outcome = "closed"

    def answer_lost(self, connection: UpstreamConnection) -> None:
        assert self.outcome is None
        self.outcome = "lost"

    def answer_invalid(self, connection: UpstreamConnection, why: str) -> None:
        connection.let_go()
        assert self.outcome is None
        self.outcome = "invalid"


def answer(rig: Rig, parts: list[bytes]) -> tuple[Exchange, EngineWire]:
    rig.engine.idle.clear()
    upstream, wire, exchange = UpstreamConnection(rig.engine), EngineWire([]), Exchange(rig.hub)
    upstream.connection_made(wire.as_transport())
    upstream.begin(cast(Any, exchange), b"POST / HTTP/1.1\r\n\r\n", b"")
    for part in parts:
        if wire.closing or exchange.outcome is not None:
            break
        upstream.data_received(part)
    if exchange.outcome is None:
        upstream.connection_lost(None)
    return exchange, wire


@deep
@given(responses, cuts)
def test_answers_mean_what_aiohttp_says_or_are_broken(rig: Rig, data: bytes, at: list[int]) -> None:
    got, _ = answer(rig, pieces(data, at))
    assert got.outcome is not None
    theirs = response_by_aiohttp(data, rig.loop, closed=True)
    if got.outcome in ("whole", "closed"):
        assert theirs is not None
        assert (b"%d" % got.status, got.body) == (theirs.first[0], theirs.body)


@deep
@given(responses, cuts)
def test_where_an_answer_is_cut_changes_nothing(rig: Rig, data: bytes, at: list[int]) -> None:
    one, _ = answer(rig, [data])
    other, _ = answer(rig, pieces(data, at))
    assert (one.outcome, one.status) == (other.outcome, other.status)
    if one.outcome in ("whole", "closed"):
        assert one.body == other.body
