"""A stream that waits is told so, where its request or its profile asks for that.

The price is the status: after the first comment it is 200, and what fails later is told in band, in the
dialect of the path. Until an engine's first byte another one may still be asked.
"""

from math import inf
from time import monotonic_ns
from typing import TYPE_CHECKING

from llmgw_router.core.errors import Kind
from llmgw_router.core.events import EventTail
from llmgw_router.core.heartbeat import comment, engine_error
from llmgw_router.core.routes import Content
from llmgw_router.relay.answer import BY_CHUNKS
from llmgw_router.relay.cors import shown
from llmgw_router.relay.phase import HELD, QUEUED
from llmgw_router.relay.reading import asks_for_stream
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.relay.ending import Ending
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.relaying import Relaying
    from llmgw_router.relay.upstream import UpstreamConnection

#: Of an exchange that is told nothing.
NEVER = inf

_STREAMS = COUNTER["streams"]
_STREAMS_BROKEN = COUNTER["streams_broken"]
_HEARTBEATS = COUNTER["heartbeats"]


def prepare(exchange: "Exchange") -> None:
    """It begins to wait: when it is to hear of that first, if at all."""
    profile = exchange.profile
    if exchange.committed or not (exchange.asked_heartbeat or profile.heartbeat):
        return
    entry = exchange.entry
    if exchange.http10 or entry is None or entry.content is not Content.JSON or not asks_for_stream(exchange):
        return
    exchange.beat_at = exchange.hub.loop.time() + profile.heartbeat_after_s


def beat(exchange: "Exchange", now: float) -> None:
    """Say that it waits, and for what; the first time this commits the status."""
    exchange.beat_at = now + exchange.profile.heartbeat_every_s
    if exchange.client.paused:
        # It does not take what it was sent: more would only fill memory.
        return
    hub = exchange.hub
    head = b""
    if not exchange.committed:
        exchange.committed = True
        exchange.status = 200
        exchange.framing = BY_CHUNKS
        head = _head(exchange)
    exchange.client.transport.write(head)
    exchange.pass_on(comment(f"waiting for {exchange.model}: {_where(exchange)}"))
    hub.counters[_HEARTBEATS] += 1


def _head(exchange: "Exchange") -> bytes:
    if exchange.hub.draining:
        exchange.keep = False
    lines = [
        b"HTTP/1.1 200 OK",
        b"content-type: text/event-stream; charset=utf-8",
        b"cache-control: no-cache",
        b"x-accel-buffering: no",
        b"transfer-encoding: chunked",
        b"x-request-id: " + (exchange.request_id or b""),
        exchange.hub.date,
    ]
    if not exchange.keep:
        lines.append(b"connection: close")
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    return head if exchange.origin is None else shown(head, exchange.origin)


def _where(exchange: "Exchange") -> str:
    hub = exchange.hub
    if exchange.phase == HELD and exchange.model is not None:
        target = hub.routes.targets.get(exchange.model)
        return "being started" if target is None else hub.room.word(target.model)
    if exchange.phase == QUEUED:
        return hub.queue.of(exchange.model or "").word(hub.now)
    return "sent to an engine"


def fail(exchange: "Ending", kind: Kind, message: str, retry_after_s: int | None) -> None:
    """A refusal where the status has left: the error event, and the end."""
    assert exchange.dialect is not None
    if retry_after_s is not None:
        message = f"{message} Ask again in {retry_after_s} s."
    exchange.hub.counters[_STREAMS_BROKEN] += 1
    exchange.keep = False
    exchange.head_sent = True
    event = EventTail(exchange.dialect).interruption(kind, message)
    exchange.pass_on(event, last=True)
    exchange.finish(monotonic_ns())


def go_on(exchange: "Relaying", connection: "UpstreamConnection", payload: bytes, *, whole: bool) -> None:
    """The engine's answer begins behind our comments. If it is no stream of events, that is an error now."""
    exchange.head_sent = True
    exchange.body = b""
    assert exchange.dialect is not None
    if connection.is_stream and connection.status == 200 and connection.encoding is None:
        exchange.hub.counters[_STREAMS] += 1
        exchange.tail = EventTail(exchange.dialect)
        exchange.pass_on(payload, last=whole)
        return
    kind, message = engine_error(connection.status, payload)
    exchange.code = kind.label
    exchange.hub.counters[_STREAMS_BROKEN] += 1
    exchange.keep = False
    event = EventTail(exchange.dialect).interruption(kind, message)
    exchange.pass_on(event, last=True)
