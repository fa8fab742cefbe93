"""A head that was read before means what the parser would make of it now, and nothing else (W51, HO18)."""

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_router.core.choosing import prompts
from llmgw_router.relay import arriving as arriving_module
from llmgw_router.relay import ipc, known_heads
from llmgw_router.relay import upstream as upstream_module
from llmgw_router.relay.client import ClientConnection
from llmgw_router.relay.exchange import Exchange
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.known_heads import RequestHead, again, left_out_length, split
from llmgw_router.relay.request import Request
from llmgw_router.relay.slots import Slots
from llmgw_router.relay.upstream import UpstreamConnection

PLAIN = b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\nx-a: 1\r\ncontent-length: %d\r\n\r\n%b"


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close
    write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


@pytest.fixture(scope="module")
def loop() -> Any:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def hub(loop: asyncio.AbstractEventLoop) -> Hub:
    slots = Slots.create(workers=1, capacity=1)
    made = Hub(
        ipc.Configure(worker=0, workers=1, slot_capacity=1, cold_socket=""), slots, loop, lambda message: None
    )
    row = ipc.EndpointRow(
        endpoint_id="e@1", replica_id="e", group_epoch=1, model="m", host="h", port=1, slot=0
    )
    made.routes.apply(ipc.TableUpdate(endpoints=(row,), seq=1))
    return made


FIELDS = tuple(name for name in Request.__slots__ if name not in ("client", "hub", "known"))


def read(hub: Hub, *reads: bytes) -> list[dict[str, object]]:
    """What one connection makes of these reads, one request after the other, with nothing answered."""
    got: list[Exchange] = []
    connection = ClientConnection(hub)
    connection.connection_made(cast(asyncio.Transport, Wire()))
    begin, hub.begin = hub.begin, got.append  # type: ignore[method-assign]
    try:
        for data in reads:
            connection.data_received(data)
            while connection.current is not None:
                connection.current = None
                connection.pump()
    finally:
        hub.begin = begin  # type: ignore[method-assign]
    hub.connections.discard(connection)
    for exchange in got:
        if exchange.refusal is None:
            exchange.normalise()
    return [{name: getattr(exchange, name) for name in FIELDS} for exchange in got]


NAMES = st.sampled_from(
    [
        b"Content-Length",
        b"content-length",
        b"x-content-length",
        b"content-length ",
        b"x-length",
        b"Transfer-Encoding",
        b"Connection",
        b"Host",
        b"Authorization",
        b"x-request-id",
        b"traceparent",
        b"Origin",
        b"Expect",
        b"Content-Encoding",
        b"x-llmgw-profile",
        b"x-llmgw-heartbeat",
        b"X-Custom",
    ]
)
VALUES = st.sampled_from(
    [b"0", b"1", b"2", b"5", b"05", b"+5", b"5 ", b"", b"chunked", b"close", b"x-custom"]
)
GAPS = st.sampled_from([b" ", b"", b"\t"])
LINES = st.lists(st.builds(lambda *of: of[0] + b":" + of[1] + of[2], NAMES, GAPS, VALUES), max_size=5)


def request(
    method: bytes, version: bytes, lines: list[bytes], end: bytes, body: bytes, length: int | None
) -> bytes:
    known = [] if length is None else [b"content-length: %d" % length]
    head = [method + b" /v1/chat/completions HTTP/" + version, b"host: r", *lines, *known]
    return end.join(head) + end + end + body


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from([b"POST", b"GET", b"HEAD", b"PUT"]),
    st.sampled_from([b"1.1", b"1.1", b"1.0", b"2.0"]),
    LINES,
    st.sampled_from([b"\r\n", b"\r\n", b"\n"]),
    st.sampled_from([b"", b"{}", b"hello", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]),
    st.sampled_from([None, 0, 2, 5]),
    st.booleans(),
)
def test_a_request_means_the_same_each_time(
    hub: Hub,
    method: bytes,
    version: bytes,
    lines: list[bytes],
    end: bytes,
    body: bytes,
    length: int | None,
    exact: bool,
) -> None:
    data = request(method, version, lines, end, body, len(body) if exact else length)
    other = request(method, version, lines, end, body + b"!!", len(body) + 2 if exact else length)
    arriving_module._HEADS.clear()
    first = read(hub, data)
    assert read(hub, data) == first
    # On one connection: by the table for the first, by what this connection said last for the second.
    here = read(hub, data, other) if len(first) == 1 and first[0]["keep"] else None
    later = read(hub, other)
    arriving_module._HEADS.clear()
    anew = read(hub, other)
    assert later == anew
    assert here is None or here == first + anew


def test_the_second_request_is_not_parsed(hub: Hub) -> None:
    arriving_module._HEADS.clear()
    read(hub, PLAIN % (2, b"{}"))
    (known,) = arriving_module._HEADS.values()
    (made,) = read(hub, PLAIN % (4, b"[{}]"))
    assert made["head"] is known.head
    assert (made["body"], made["has_body"], made["keep"]) == (b"[{}]", True, True)


@pytest.mark.parametrize(
    "line",
    [
        b"x-request-id: a",
        b"traceparent: 00-x",
        b"origin: http://a",
        b"expect: 100-continue",
        b"connection: close",
    ],
)
def test_heads_with_something_of_their_own_are_read_each_time(hub: Hub, line: bytes) -> None:
    arriving_module._HEADS.clear()
    read(hub, b"POST /v1/x HTTP/1.1\r\nhost: r\r\n%b\r\ncontent-length: 2\r\n\r\n{}" % line)
    assert not arriving_module._HEADS


def test_another_length_of_digits_is_no_other_head() -> None:
    assert split(PLAIN % (2, b"{}")) == split(PLAIN % (2, b"{}"))
    short, long = split(PLAIN % (2, b"{}")), split(PLAIN % (10, b"x" * 10))
    assert short is not None
    assert long is not None
    assert short[0] == long[0]
    assert left_out_length(short[0])
    assert split(PLAIN % (3, b"{}")) is None
    assert split((PLAIN % (2, b"{}")) * 2) is None


@given(
    size=st.integers(0, 1200) | st.sampled_from([9, 10, 99, 100, 999, 1000, 9999, 10_000, 99_999]),
    said=st.integers(-3, 3),
    zeros=st.sampled_from([b"", b"", b"0", b"+", b" "]),
    change=st.none() | st.integers(0, 70),
    more=st.sampled_from([b"", b"", b"x", b"\r\n\r\n", PLAIN % (2, b"{}")]),
)
def test_what_is_said_again_is_what_would_be_read(
    size: int, said: int, zeros: bytes, change: int | None, more: bytes
) -> None:
    """W51: the short way finds a body only where the long way finds this head and this body."""
    first = split(PLAIN % (2, b"{}"))
    assert first is not None
    known = RequestHead(first[0], b"POST", b"/v1/x", b"r", [], None)
    body = b"x" * size
    data = (PLAIN % (7, body)).replace(b"length: 7", b"length: %b%d" % (zeros, size + said)) + more
    if change is not None:
        data = data[:change] + b"~" + data[change + 1 :]
    read_anew = split(data)
    expected = read_anew[1] if read_anew is not None and read_anew[0] == first[0] else None
    found = again(known, data)
    assert found is None or found == expected
    if expected is not None and not zeros:
        assert found == expected


def test_a_connection_that_says_what_is_known_has_no_parser(hub: Hub) -> None:
    """An open stream is a connection that was read once: what it needs no more it must not hold."""
    arriving_module._HEADS.clear()
    read(hub, PLAIN % (2, b"{}"))
    connection = ClientConnection(hub)
    connection.connection_made(cast(asyncio.Transport, Wire()))
    begin, hub.begin = hub.begin, lambda exchange: None  # type: ignore[method-assign]
    try:
        connection.data_received(PLAIN % (4, b"[{}]"))
        assert not connection._parses
        connection.current = None
        connection.data_received(b"GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n")
        assert connection._parses
        assert connection.current is not None
    finally:
        hub.begin = begin  # type: ignore[method-assign]
        hub.connections.discard(connection)


def test_what_was_decoded_of_a_body_is_dropped_when_its_endpoint_is_chosen(hub: Hub) -> None:
    client = ClientConnection(hub)
    client.connection_made(cast(asyncio.Transport, Wire()))
    exchange = client.current = Exchange(client)
    exchange.said = prompts.Said(model="m")
    exchange.dispatch((), hub.routes.targets["m"].model)
    assert exchange.said is None
    hub.connections.discard(client)


def test_digits_of_another_field_are_never_left_out() -> None:
    data = b"POST / HTTP/1.1\r\nx-strength: 2\r\nhost: r\r\ncontent-length: 2\r\n\r\n{}"
    found = split(data)
    assert found is not None
    assert not left_out_length(found[0])


def test_nobody_smuggles_by_a_length_that_is_none(hub: Hub) -> None:
    """The first digits here are not the length's: left out, they would hide the second request."""
    data = b"POST /v1/x HTTP/1.1\r\nhost: r\r\nx-content-length: %d\r\ncontent-length: 2\r\n\r\n%b"
    arriving_module._HEADS.clear()
    read(hub, data % (2, b"{}"))
    hidden = b"GET /v1/y HTTP/1.1\r\nhost: r\r\n\r\n"
    first, second = read(hub, data % (2 + len(hidden), b"{}" + hidden))
    assert (first["body"], second["url"]) == (b"{}", b"/v1/y")


def test_what_is_remembered_is_bounded(hub: Hub) -> None:
    arriving_module._HEADS.clear()
    for number in range(known_heads.MOST + 5):
        read(hub, b"POST /v1/%d HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\n\r\n{}" % number)
    assert len(arriving_module._HEADS) <= known_heads.MOST


ANSWER_LINES = st.lists(
    st.sampled_from(
        [
            b"Content-Type: application/json",
            b"content-type: text/event-stream",
            b"Connection: close",
            b"Connection: keep-alive",
            b"connection: x-hop",
            b"x-hop: 1",
            b"Transfer-Encoding: chunked",
            b"set-cookie: a",
            b"set-cookie: b",
            b"x-length: 2",
            b"date: now",
            b"cache-control: no-store",
            b"content-encoding: gzip",
            b"location: http://inside/",
            b"x-llmgw-decision: forged",
        ]
    ),
    max_size=4,
)


def answered(hub: Hub, data: bytes) -> tuple[bytes, bool]:
    """What the client gets of an engine's answer, and whether the engine's connection is kept."""
    client_wire, up_wire = Wire(), Wire()
    client = ClientConnection(hub)
    client.connection_made(cast(asyncio.Transport, client_wire))
    (endpoint,) = hub.routes.targets["m"].endpoints
    endpoint.avoid_until = endpoint.resting_until = 0.0
    upstream = UpstreamConnection(endpoint)
    upstream.connection_made(cast(asyncio.Transport, up_wire))
    endpoint.idle[:] = [upstream]
    body = b'{"model":"m"}'
    client.data_received(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\nx-request-id: i\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    upstream.data_received(data)
    kept = endpoint.idle == [upstream]
    if client.current is not None:
        client.current.client_left()
    hub.connections.discard(client)
    return client_wire.written, kept


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([200, 200, 204, 304, 307, 400, 500]),
    ANSWER_LINES,
    st.sampled_from([b"{}", b"hello", b""]),
    st.booleans(),
)
def test_an_answer_means_the_same_each_time(
    hub: Hub, loop: asyncio.AbstractEventLoop, status: int, lines: list[bytes], body: bytes, extra: bool
) -> None:
    def answer(content: bytes) -> bytes:
        head = [b"HTTP/1.1 %d X" % status, *lines, b"content-length: %d" % len(content)]
        return b"\r\n".join(head) + b"\r\n\r\n" + content + (b"excess" if extra else b"")

    async def all_of_it() -> None:
        hub.tick()
        upstream_module._ANSWERS.clear()
        first = answered(hub, answer(body))
        assert answered(hub, answer(body)) == first
        again = answered(hub, answer(body + b"!!"))
        upstream_module._ANSWERS.clear()
        assert again == answered(hub, answer(body + b"!!"))

    loop.run_until_complete(all_of_it())


def test_excess_behind_an_answer_is_not_taken_for_its_body(hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
    async def both() -> None:
        upstream_module._ANSWERS.clear()
        data = b"HTTP/1.1 200 OK\r\nx-length: %d\r\ncontent-length: 2\r\n\r\n%b"
        answered(hub, data % (2, b"{}"))
        written, kept = answered(hub, data % (4, b"{}!!"))
        assert written.endswith(b"\r\n\r\n{}")
        assert not kept

    loop.run_until_complete(both())


def test_the_second_answer_is_not_parsed(hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
    async def both() -> None:
        upstream_module._ANSWERS.clear()
        data = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-a: 1\r\ncontent-length: 2\r\n\r\n{}"
        first = answered(hub, data)
        (known,) = upstream_module._ANSWERS.values()
        assert not known.prefix
        assert answered(hub, data) == first
        assert known.prefix.startswith(b"HTTP/1.1 200 OK\r\nx-a: 1\r\n")

    loop.run_until_complete(both())
