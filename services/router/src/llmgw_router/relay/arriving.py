"""Requests as they arrive on one client connection: llhttp's calls, and what is made of them.

llhttp refuses every smuggling shape by itself (W51: both framings, differing or repeated lengths,
bare LF, blanks before a colon); what it lets through and we do not is checked when the head is
complete. What is whole waits in `_ready` for its turn, refusals among the rest.
"""

import asyncio

import httptools

from llmgw_router.core import errors
from llmgw_router.core.errors import Kind
from llmgw_router.core.heads import (
    PLAIN,
    REQ_CONNECTION,
    REQ_DROP,
    REQ_ENCODING,
    REQ_EXPECT,
    REQ_HEARTBEAT,
    REQ_HOST,
    REQ_ID,
    REQ_LENGTH,
    REQ_ORIGIN,
    REQ_PRIVATE,
    REQ_PROFILE,
    REQ_TRACE,
    REQ_TRANSFER,
    REQ_UPGRADE,
    REQUEST,
    Fields,
    is_sane_id,
)
from llmgw_router.core.scan import BIG_BYTES
from llmgw_router.relay.acceptance import too_large, unacceptable
from llmgw_router.relay.cors import allowed
from llmgw_router.relay.exchange import Exchange
from llmgw_router.relay.hub import Hub
from llmgw_router.relay.known_heads import Around, RequestHead, keep, left_out_length, split
from llmgw_router.relay.upgrades import go_on_behind, may_be_ignored

_FIELDS = Fields(REQUEST, REQ_DROP)
_known = _FIELDS.known.get
#: Of all clients of this worker (relay/known_heads.py).
_HEADS: dict[Around, RequestHead] = {}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Arriving(asyncio.Protocol):
    """The half of a client connection that reads; relay/client.py is the other."""

    __slots__ = (
        "_body",
        "_deaf",
        "_head_bytes",
        "_head_done",
        "_last",
        "_lines",
        "_parses",
        "_put_off",
        "_ready",
        "_upgrade",
        "began",
        "current",
        "hub",
        "parser",
        "parsing",
        "touched",
        "transport",
    )

    transport: asyncio.Transport
    #: Made for the first request whose head was not read before: 1 KB, which most connections do not need.
    parser: httptools.HttpRequestParser

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        #: There is a parser.
        self._parses = False
        #: The request whose answer is being made.
        self.current: Exchange | None = None
        #: The request that is arriving.
        self.parsing: Exchange | None = None
        #: A list, as it holds one at a time nearly always: an empty deque is 0.7 KB a connection.
        self._ready: list[Exchange] = []
        #: What the request that is arriving would rather speak ...
        self._upgrade: bytes | None = None
        #: ... and that it is not complete yet, although the parser has said so.
        self._put_off = False
        #: Nothing that arrives is of interest any more.
        self._deaf = False
        self._head_bytes = 0
        self._head_done = False
        self._body: bytes | bytearray = b""
        #: The head of the last request here that came in one piece; most clients say it again.
        self._last: RequestHead | None = None
        #: When what arrives now began, and when something last did; in the coarse clock.
        self.began = self.touched = hub.now

    @property
    def head_begun(self) -> bool:
        """A request has begun to arrive, and its head is not complete."""
        return (self.parsing is not None and not self._head_done) or self._head_bytes > 0

    # --- llhttp's calls

    def on_message_begin(self) -> None:
        exchange = self.parsing = Exchange(self)  # type: ignore[arg-type]
        self._lines: list[bytes] | None = exchange.head
        self._body = b""
        self._head_done = False

    def on_url(self, part: bytes) -> None:
        exchange = self.parsing
        assert exchange is not None
        exchange.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        lines = self._lines
        if lines is None:
            # A trailer field: nothing in it may change what the head has said.
            return
        field = _known(name)
        if field is None:
            field = _FIELDS.kind(name)
        if field == PLAIN:
            lines.append(b"%b: %b" % (name, value))
        elif field == REQ_PRIVATE:
            exchange = self.parsing
            assert exchange is not None
            line = b"%b: %b" % (name, value)
            if exchange.private is None:
                exchange.private = [line]
            else:
                exchange.private.append(line)
        elif field != REQ_DROP:
            self._special(field, value)

    def _special(self, field: int, value: bytes) -> None:
        exchange = self.parsing
        assert exchange is not None
        if field == REQ_LENGTH:
            exchange.has_body = True
            exchange.body_bytes = int(value)
        elif field == REQ_HOST:
            if exchange.host is not None:
                exchange.refusal = (errors.BAD_REQUEST, "The Host header is given more than once.")
            exchange.host = value
        elif field == REQ_CONNECTION:
            if exchange.connection_values is None:
                exchange.connection_values = []
            exchange.connection_values.append(value)
        elif field == REQ_TRANSFER:
            if exchange.transfer is not None:
                exchange.refusal = (errors.BAD_REQUEST, "The Transfer-Encoding header is given twice.")
            exchange.transfer = value
        elif field == REQ_UPGRADE:
            self._upgrade = value if self._upgrade is None else self._upgrade + b"," + value
        elif field == REQ_ID:
            if is_sane_id(value):
                exchange.request_id = value
        elif field == REQ_ENCODING:
            if value.strip().lower() != b"identity":
                exchange.content_encoding = value
        elif field == REQ_EXPECT:
            exchange.expects = value
        elif field == REQ_ORIGIN:
            exchange.head.append(b"origin: " + value)
            if self.hub.config.cors_origins:
                exchange.origin = allowed(self.hub.config.cors_origins, value)
        elif field == REQ_PROFILE:
            exchange.asked_profile = value
        elif field == REQ_HEARTBEAT:
            exchange.asked_heartbeat = value.strip().lower() == b"sse"
        elif field == REQ_TRACE:
            exchange.traceparent = value
            if self.hub.tracer is None:
                exchange.head.append(b"traceparent: " + value)

    def on_headers_complete(self) -> None:
        exchange = self.parsing
        assert exchange is not None
        self._head_done = True
        self._lines = None
        exchange.method = self.parser.get_method()
        refusal = unacceptable(exchange, self.parser.get_http_version(), self.hub.limits)
        if refusal is not None:
            exchange.refusal = refusal
            self._give_up(exchange)
        elif (
            exchange.expects is not None and not exchange.http10 and self.current is None and not self._ready
        ):
            # Only in turn: else it would be read as the beginning of an earlier answer.
            self.transport.write(_CONTINUE)
        if self._upgrade is None or not self.parser.should_upgrade():
            exchange.body_bytes = 0

    def on_body(self, part: bytes) -> None:
        exchange = self.parsing
        if exchange is None:
            return
        exchange.body_bytes += len(part)
        if exchange.body_bytes > self.hub.limits.max_body_bytes:
            exchange.refusal = too_large(self.hub.limits)
            self._give_up(exchange)
            return
        if not self._body:
            self._body = part
        elif isinstance(self._body, bytearray):
            self._body += part
        else:
            # Not a list of parts: a body that comes byte by byte would cost forty times its size.
            self._body = bytearray(self._body) + part
        bodies = self.hub.bodies
        if len(self._body) > len(part) and not bodies.fits(len(part)):
            exchange.limit = bodies.named
            exchange.refusal = bodies.refusal()
            self._give_up(exchange)

    def on_message_complete(self) -> None:
        exchange = self.parsing
        if exchange is None:
            return
        if self._upgrade is not None:
            offered, self._upgrade = self._upgrade, None
            if self.parser.should_upgrade() and exchange.method != b"CONNECT" and may_be_ignored(offered):
                self._put_off = True
                return
        self.parsing = None
        body = self._body
        if body:
            exchange.has_body = True
            exchange.body = body if isinstance(body, bytes) or len(body) > BIG_BYTES else bytes(body)
            self._body = b""
        exchange.keep = self.parser.should_keep_alive()
        self._ready.append(exchange)

    def _give_up(self, exchange: Exchange) -> None:
        # It is answered in its turn, and then the connection ends: the rest of what comes is not read.
        self.parsing = None
        self._body = b""
        self._deaf = True
        exchange.keep = False
        self._ready.append(exchange)

    # --- a read

    def _feed(self, data: bytes) -> None:
        now = self.hub.now
        between = self.parsing is None
        self.touched = now
        whole = None
        if between and not self._head_bytes:
            self.began = now
            whole = split(data)
            if whole is not None:
                known = _HEADS.get(whole[0])
                limits = self.hub.limits
                if (
                    known is not None
                    and len(whole[1]) <= limits.max_body_bytes
                    and known.size <= limits.max_head_bytes
                ):
                    self._last = known
                    self._ready.append(self._again(known, whole[1]))
                    return
        if not self._parses:
            self._parses = True
            self.parser = httptools.HttpRequestParser(self)
        queued = len(self._ready)
        limit = self.hub.limits.max_head_bytes
        rest: bytes | memoryview = data
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    if self._deaf:
                        return
                    if not self._put_off:
                        # The message is complete; what follows would be another protocol.
                        self._refuse_last(errors.NO_UPGRADE, "Upgrades are not supported on this port.")
                        return
                    self._ignore_upgrade()
                    rest = memoryview(rest)[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            self.hub.log_bug("parsing a request", error)
            self.refuse_next(errors.INTERNAL, "Internal error of the router.")
            return
        except httptools.HttpParserError as error:
            if not self._deaf:
                self.refuse_next(errors.BAD_REQUEST, f"The request is not valid HTTP: {error}.")
            return
        if self._deaf:
            return
        if self.parsing is not None and not self._head_done:
            # Counted by whole reads, from the first that belongs to this head alone: the bound is
            # exact to one read, and costs nothing where heads come in one piece.
            self._head_bytes = 0 if len(self._ready) > queued else self._head_bytes + len(data)
            if self._head_bytes > limit:
                self.refuse_next(errors.HEAD_TOO_LARGE, f"The request head exceeds {limit} bytes.")
        else:
            if (
                between
                and not self._head_bytes
                and len(data) > limit
                and data.find(b"\r\n\r\n", 0, limit) < 0
            ):
                self._refuse_last(errors.HEAD_TOO_LARGE, f"The request head exceeds {limit} bytes.")
            self._head_bytes = 0
            if whole is not None and len(self._ready) == queued + 1:
                self._remember(whole[0], self._ready[-1])

    def _ignore_upgrade(self) -> None:
        """Read on behind the head that is done as if it had offered nothing (W57)."""
        exchange = self.parsing
        assert exchange is not None
        self._put_off = False
        length, exchange.body_bytes = exchange.body_bytes, 0
        go_on_behind(
            self,
            self.parser.get_http_version(),
            keep=self.parser.should_keep_alive(),
            length=length if exchange.has_body else None,
            chunked=exchange.transfer is not None,
        )

    def _again(self, known: RequestHead, body: bytes) -> Exchange:
        """The request that llhttp would make of this head, as it did before, and this body."""
        exchange = Exchange(self)  # type: ignore[arg-type]
        exchange.known = known
        exchange.method = known.method
        exchange.url = known.url
        exchange.host = known.host
        exchange.head = known.head
        exchange.private = known.private
        entry = known.entry
        if entry is not None:
            exchange.path = known.url
            exchange.entry = entry
            exchange.dialect = entry.dialect
        exchange.has_body = True
        exchange.body = body
        exchange.body_bytes = len(body)
        return exchange

    def _remember(self, around: Around, exchange: Exchange) -> None:
        """Keep its head, if it says nothing that is for one request only or that settings decide about."""
        if (
            exchange.keep
            and not exchange.http10
            and exchange.refusal is None
            and exchange.request_id is None
            and exchange.traceparent is None
            and exchange.asked_profile is None
            and not exchange.asked_heartbeat
            and exchange.connection_values is None
            and exchange.content_encoding is None
            and exchange.expects is None
            and exchange.transfer is None
            and left_out_length(around)
            and b"\norigin:" not in around[0].lower()
            and b"\norigin:" not in around[1].lower()
        ):
            made = RequestHead(
                around, exchange.method, exchange.url, exchange.host, exchange.head, exchange.private
            )
            keep(_HEADS, around, made)

    def refuse_next(self, kind: Kind, message: str) -> None:
        """Give up on what is arriving: it is answered with this in its turn, and that is the last."""
        exchange = self.parsing or Exchange(self)  # type: ignore[arg-type]
        exchange.refusal = (kind, message)
        self._give_up(exchange)

    def _refuse_last(self, kind: Kind, message: str) -> None:
        if self.parsing is None and self._ready:
            exchange = self._ready[-1]
            exchange.refusal = (kind, message)
            exchange.keep = False
            self._deaf = True
        else:
            self.refuse_next(kind, message)
