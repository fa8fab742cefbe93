"""One connection to an engine (or the cold application): responses are parsed here, and nothing else.

llhttp follows the head and the framing; what it calls body is handed on as the bytes they are.
A connection serves one exchange at a time and lies in its endpoint's idle list between two.
"""

import asyncio
from typing import TYPE_CHECKING

import httptools

from llmgw_router.core.heads import (
    PLAIN,
    RES_ACCEL,
    RES_CACHE,
    RES_CONNECTION,
    RES_DROP,
    RES_ENCODING,
    RES_LENGTH,
    RES_LOCATION,
    RES_TRANSFER,
    RES_TYPE,
    RESPONSE,
    Fields,
    is_event_stream,
    named_by_connection,
    without,
)
from llmgw_router.relay.known_heads import AnswerHead, Around, again, keep, left_out_length, split

if TYPE_CHECKING:
    from llmgw_router.relay.endpoint import Endpoint
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.hub import Hub

#: Of all engines (relay/known_heads.py).
_ANSWERS: dict[Around, AnswerHead] = {}
_FIELDS = Fields(RESPONSE, RES_DROP)
_known = _FIELDS.known.get
#: What Connection says nearly always; names no header.
_PLAIN_CONNECTION = (b"keep-alive", b"close")


#: An engine is ours, but a port may be anybody's.
_MOST_HEAD_BYTES = 256 * 1024

#: Statuses by which an engine refuses us, not the caller.
DENIALS = (401, 403)
#: Statuses by which an engine says that another may have room.
BUSY = (429, 503)
#: Statuses by which an engine says that it has no such thing, or no such way to ask for it.
NOT_HERE = (404, 405)
_SPECIAL = DENIALS + BUSY + NOT_HERE


class UpstreamConnection(asyncio.Protocol):
    """Parses responses; tells its exchange of each read, of the end, and of a loss."""

    __slots__ = (
        "_excess",
        "_head_bytes",
        "_hop_names",
        "_interim",
        "_keep",
        "_last",
        "_parser",
        "_parts",
        "_transfer",
        "accel",
        "cache",
        "content_type",
        "done",
        "encoding",
        "endpoint",
        "exchange",
        "head",
        "head_done",
        "idle_since",
        "is_stream",
        "known",
        "length",
        "location",
        "responded",
        "reused",
        "status",
        "transport",
        "until_close",
        "where",
    )

    transport: asyncio.Transport

    def __init__(self, endpoint: "Endpoint") -> None:
        self.endpoint = endpoint
        #: What the endpoint's own said when this was opened.
        self.where = endpoint.where
        self.exchange: Exchange | None = None
        self.reused = False
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        #: The head of the last answer here that came in one piece; most engines say it again.
        self._last: AnswerHead | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def begin(self, exchange: "Exchange", head: bytes, body: bytes | bytearray) -> None:
        """Send one request. The answer goes to `exchange` until it ends or `exchange` lets go."""
        self.exchange = exchange
        #: A byte of the answer has come: asking again would no longer be a matter of a stale socket.
        self.responded = False
        self.done = False
        self._excess = False
        self._keep = False
        self._interim = False
        self._head_bytes = 0
        self.head_done = False
        self.known: AnswerHead | None = None
        self.transport.write(head + body if len(body) < 65536 else head)
        if len(body) >= 65536:
            self.transport.write(body)

    def let_go(self) -> None:
        """The exchange is over before its answer was: this connection is of no further use."""
        self.exchange = None
        self.transport.abort()

    def retry_after_s(self) -> float | None:
        """The answer's `Retry-After` where it is a number of seconds, at most a minute of it."""
        for line in self.head:
            name, _, value = line.partition(b":")
            if name.lower() == b"retry-after" and value.strip().isdigit():
                return min(60.0, float(value))
        return None

    # --- llhttp's calls

    def on_message_begin(self) -> None:
        if self.done:
            # Another message behind the answer, which nobody asked for: it must not touch it.
            self._excess = True
            return
        self.head: list[bytes] = []
        self.status = 0
        self.length: bytes | None = None
        self.content_type: bytes | None = None
        self.encoding: bytes | None = None
        self.cache: bytes | None = None
        self.accel: bytes | None = None
        self.location: bytes | None = None
        self._transfer = False
        self._hop_names: bytes | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            # A trailer field. None is promised to the client, so none is passed.
            return
        field = _known(name)
        if field is None:
            field = _FIELDS.kind(name)
        if field == PLAIN:
            self.head.append(b"%b: %b" % (name, value))
        elif field == RES_TYPE:
            self.content_type = value
        elif field == RES_LENGTH:
            self.length = value
        elif field == RES_DROP:
            pass
        elif field == RES_TRANSFER:
            self._transfer = True
        elif field == RES_CONNECTION:
            self._hop_names = value if self._hop_names is None else self._hop_names + b"," + value
        elif field == RES_CACHE:
            self.cache = value
        elif field == RES_ACCEL:
            self.accel = value
        elif field == RES_LOCATION:
            self.location = value
        elif field == RES_ENCODING:
            self.encoding = value

    def on_headers_complete(self) -> None:
        if self._excess:
            return
        self.status = status = self._parser.get_status_code()
        if status < 200:
            # 100, 103 and their like: the answer is still to come. 101 was never asked for.
            self._interim = True
            return
        self.head_done = True
        self.is_stream = is_event_stream(self.content_type)
        if self._hop_names is not None and self._hop_names.lower() not in _PLAIN_CONNECTION:
            names = named_by_connection((self._hop_names,))
            if names:
                self.head = without(self.head, names)
        # RFC 9112 section 6.3: neither length nor chunks means that the close is the end.
        self.until_close = self.length is None and not self._transfer and status not in (204, 304)
        exchange = self.exchange
        if exchange is not None and exchange.method == b"HEAD":
            # llhttp cannot know that no body follows; the connection is not used again.
            self.done = True
            self.until_close = False

    def on_body(self, part: bytes) -> None:
        if not self._excess:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
            return
        if self.done:
            return
        self.done = True
        self._keep = self._parser.should_keep_alive()

    # --- asyncio's calls

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            # Nobody asked. What a pooled connection says unasked would be taken for the next answer.
            self.transport.abort()
            return
        whole = None
        if not self.responded:
            self.responded = True
            if exchange.method != b"HEAD":
                known = self._last
                body = None if known is None else again(known, data)
                if body is None:
                    whole = split(data)
                    if whole is not None:
                        known, body = _ANSWERS.get(whole[0]), whole[1]
                if known is not None and body is not None:
                    self._last = known
                    self._again(known, len(body))
                    try:
                        self._finish(exchange, body, keep=True)
                    except Exception:
                        exchange.hub.bug(exchange)
                    return
        broken: str | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            exchange.hub.log_bug("parsing an answer", error)
            broken = "the router failed to read it"
        except httptools.HttpParserUpgrade:
            broken = "it switched protocols, which nobody asked for"
        except httptools.HttpParserError as error:
            broken = f"it is not valid HTTP: {error}"
        parts = self._parts
        if not parts:
            payload = b""
        elif len(parts) == 1:
            payload = parts[0]
            parts.clear()
        else:
            payload = b"".join(parts)
            parts.clear()
        try:
            if self.done:
                if whole is not None and self._keep and broken is None:
                    self._remember(whole[0])
                # Bytes after a complete answer spoil the connection, not the answer.
                self._finish(exchange, payload, keep=self._keep and broken is None and not self._excess)
                return
            if self.head_done:
                exchange.answer_came(self, payload)
            else:
                self._head_bytes += len(data)
                if self._head_bytes > _MOST_HEAD_BYTES:
                    broken = f"its head exceeds {_MOST_HEAD_BYTES} bytes"
            if broken is not None and self.exchange is exchange:
                exchange.answer_invalid(self, broken)
        except Exception:
            exchange.hub.bug(exchange)

    def _again(self, known: AnswerHead, length: int) -> None:
        """Be as llhttp would leave it after this head, as it did before, and a body of this length."""
        self.known = known
        self.status = known.status
        self.head = known.head
        self.content_type = known.content_type
        self.encoding = known.encoding
        self.cache = known.cache
        self.accel = known.accel
        self.location = known.location
        self.length = b"%d" % length
        self.is_stream = self.until_close = False
        self.head_done = self.done = True

    def _remember(self, around: Around) -> None:
        if (
            self.length is not None
            and not self.is_stream
            and not self._transfer
            and self.status not in (204, 304)
            and left_out_length(around)
        ):
            made = AnswerHead(
                around,
                self.status,
                self.head,
                self.content_type,
                self.encoding,
                self.cache,
                self.accel,
                self.location,
            )
            keep(_ANSWERS, around, made)

    def _finish(self, exchange: "Exchange", payload: bytes, *, keep: bool) -> None:
        if self.status in _SPECIAL and not exchange.answer_wanted(self):
            return
        # Both ways, before the last bytes are written: a client that is slow at them may pause what the
        # exchange still holds, and nobody would wake a connection that lies in the pool.
        self.exchange = exchange.upstream = None
        if keep and not self.transport.is_closing():
            self.reused = True
            self._park(exchange.hub)
        else:
            self.transport.close()
        exchange.answer_ended(self, payload)

    def _park(self, hub: "Hub") -> None:
        endpoint = self.endpoint
        if (
            endpoint.leaving
            or self.where is not endpoint.where
            or len(endpoint.idle) >= hub.limits.upstream_idle_max
        ):
            self.transport.close()
        else:
            self.idle_since = hub.now
            endpoint.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self.exchange
        if exchange is None:
            idle = self.endpoint.idle
            if self in idle:
                idle.remove(self)
            return
        self.exchange = None
        if self.head_done and self.until_close and exc is None:
            exchange.hub.guard(exchange, exchange.answer_closed, self)
        else:
            exchange.hub.guard(exchange, exchange.answer_lost, self)

    def pause_writing(self) -> None:
        # The request is in memory whole and cannot be taken back: there is nobody to hold up.
        pass

    def resume_writing(self) -> None:
        pass
