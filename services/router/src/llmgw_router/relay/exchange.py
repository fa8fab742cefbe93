"""One request and its answer: routed, held, sent, asked again, relayed, ended. A chain of plain calls.

Invariants. An endpoint taken is released exactly once, on whichever path the exchange ends. Until
`head_sent` the client has seen nothing and another endpoint may be asked; from then on the only
choices are to go on, to end, and to say that it was cut. A clean end is never made up.
"""

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from llmgw_router.core import errors
from llmgw_router.core.body import BodyRefused, model_of, with_model
from llmgw_router.core.errors import Kind
from llmgw_router.core.events import EventTail
from llmgw_router.core.heads import block, named_by_connection, without
from llmgw_router.core.paths import BadPath, split
from llmgw_router.core.policy import pick
from llmgw_router.core.routes import HOT, HOT_METHODS, Dialect
from llmgw_router.core.table import ModelRow, Waiting, while_cold
from llmgw_router.relay.answer import BY_CHUNKS, BY_CLOSE, answer_head, framing_of
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.slots import COUNTER
from llmgw_router.relay.upstream import UpstreamConnection

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.endpoint import Endpoint, EngineEndpoint
    from llmgw_router.relay.hub import Hub

_RETRIES_STALE = COUNTER["retries_stale"]
_RETRIES_OTHER = COUNTER["retries_other"]
_COLD = COUNTER["cold_requests"]
_CONNECTS = COUNTER["upstream_connects"]
_STREAMS = COUNTER["streams"]
_STREAMS_BROKEN = COUNTER["streams_broken"]


# Where an exchange stands; decides which deadline looks at it.
ARRIVING: Final = 0
HELD: Final = 1
CONNECTING: Final = 2
#: Sent; not a byte of an answer's body yet.
WAITING: Final = 3
RELAYING: Final = 4
OVER: Final = 5


class Exchange:
    """Begins as what the client's parser fills in; lives until the answer has left or the client has."""

    __slots__ = (
        "body",
        "body_bytes",
        "bytes_out",
        "client",
        "code",
        "connecting",
        "connection_values",
        "content_encoding",
        "dialect",
        "endpoint",
        "expects",
        "first_ns",
        "framing",
        "has_body",
        "head",
        "head_sent",
        "hold_until",
        "host",
        "http10",
        "hub",
        "keep",
        "method",
        "model",
        "path",
        "phase",
        "private",
        "query",
        "refusal",
        "request_id",
        "resent",
        "since",
        "started",
        "started_ns",
        "status",
        "tail",
        "touched",
        "transfer",
        "tried",
        "upstream",
        "url",
    )

    def __init__(self, client: "ClientConnection") -> None:
        # What the parser fills in.
        self.client = client
        self.hub: Hub = client.hub
        self.method = b""
        self.url = b""
        self.head: list[bytes] = []
        self.private: list[bytes] | None = None
        self.host: bytes | None = None
        self.request_id: bytes | None = None
        self.connection_values: list[bytes] | None = None
        self.content_encoding: bytes | None = None
        self.expects: bytes | None = None
        self.transfer: bytes | None = None
        self.has_body = False
        self.body = b""
        self.body_bytes = 0
        self.keep = True
        self.http10 = False
        self.refusal: tuple[Kind, str] | None = None
        # What becomes of it.
        self.phase: int = ARRIVING
        self.path = b""
        self.query = b""
        self.dialect: Dialect | None = None
        self.model: str | None = None
        self.endpoint: Endpoint | None = None
        self.upstream: UpstreamConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.tried: list[EngineEndpoint] | None = None
        self.resent = False
        self.head_sent = False
        self.tail: EventTail | None = None
        self.status = 0
        self.code: str | None = None
        self.bytes_out = 0
        self.first_ns = 0

    # --- where it goes

    def route(self) -> None:
        """The request is here whole: decide what it is, and send it on its way."""
        hub = self.hub
        self.started = hub.now
        self.started_ns = monotonic_ns()
        if self.request_id is None:
            self.request_id = hub.new_id()
        if self.refusal is not None:
            self.refuse(*self.refusal)
            return
        url = self.url
        dialect = HOT.get(url)
        if dialect is not None:
            self.path = url
        else:
            try:
                self.path, self.query = split(url)
            except BadPath as error:
                self.refuse(errors.BAD_REQUEST, f"The request target is invalid: {error}.")
                return
            dialect = HOT.get(self.path)
        if self.connection_values is not None:
            names = named_by_connection(self.connection_values)
            if names:
                self.head = without(self.head, names)
                if self.private:
                    self.private = without(self.private, names)
        if dialect is None:
            hub.counters[_COLD] += 1
            self.send(hub.cold)
            return
        self.dialect = dialect
        if self.method != b"POST":
            self.refuse(
                errors.METHOD_NOT_ALLOWED,
                f"{self.method.decode()} is not allowed for {self.path.decode('latin-1')}; use POST.",
                allow=HOT_METHODS,
            )
            return
        if self.content_encoding is not None:
            self.refuse(
                errors.CONTENT_ENCODING, "Compressed request bodies are not supported; send identity."
            )
            return
        if hub.refusing:
            self.refuse(errors.STOPPING, "This router is stopping; ask again.", retry_after_s=1)
            return
        try:
            name = model_of(self.body)
        except BodyRefused as refused:
            self.refuse(refused.kind, str(refused))
            return
        target = hub.targets.get(name)
        if target is None:
            if not hub.routes_known:
                self.refuse(errors.STARTING, "This router has no routes yet; ask again.", retry_after_s=1)
                return
            self.refuse(
                errors.MODEL_NOT_FOUND, f"The model `{name}` does not exist or you do not have access to it."
            )
            return
        model = target.model
        self.model = model.name
        if name != model.name:
            self.body = with_model(self.body, model.name)
        self.dispatch(target.endpoints, model)

    def dispatch(self, endpoints: "tuple[EngineEndpoint, ...]", model: ModelRow) -> None:
        """Send it to the best of `endpoints`; without one, hold it or refuse it."""
        hub = self.hub
        best = pick(endpoints, now=hub.now, chance=hub.chance(), tried=self.tried or ())
        if best is not None:
            self.send(best)
        elif while_cold(model) is Waiting.HOLD and not hub.draining:
            if hub.room.admit(self, model):
                self.phase = HELD
                self.hold_until = hub.now + model.hold_timeout_s
            else:
                self.refuse_loading(model, "too many requests already wait for it")
        else:
            self.refuse_cold(model)

    def send(self, endpoint: "Endpoint") -> None:
        """Take the endpoint; ask it on a pooled connection, or on a new one."""
        endpoint.take()
        self.endpoint = endpoint
        idle = endpoint.idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                self._begin(connection)
                return
        self._open(endpoint)

    def _open(self, endpoint: "Endpoint") -> None:
        self.phase = CONNECTING
        self.hub.counters[_CONNECTS] += 1
        self.since = self.hub.now
        self.connecting = self.hub.loop.create_task(self._connect(endpoint))

    async def _connect(self, endpoint: "Endpoint") -> None:
        try:
            connection = await endpoint.connect(self.hub.loop, lambda: UpstreamConnection(endpoint))
        except OSError as error:
            self.connecting = None
            reason = error.strerror or str(error)
            self._fail(errors.UNREACHABLE, f"The engine cannot be reached: {reason}.", again=True)
        else:
            self.connecting = None
            self.hub.guard(self, self._begin, connection)

    def _begin(self, connection: UpstreamConnection) -> None:
        self.phase = WAITING
        self.since = self.touched = self.hub.now
        self.upstream = connection
        if self.client.paused:
            connection.transport.pause_reading()
        connection.begin(self, self._upstream_head(), self.body)

    def _upstream_head(self) -> bytes:
        endpoint = self.endpoint
        assert endpoint is not None
        assert self.request_id is not None
        if isinstance(endpoint, ColdEndpoint):
            return self._cold_head()
        prefix = endpoint.head_prefix(self.path + self.query if self.query else self.path)
        return b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            prefix,
            block(self.head),
            self.request_id,
            len(self.body),
        )

    def _cold_head(self) -> bytes:
        # Cookies and keys travel here, and who asked: the cold application decides about both.
        lines = [
            b"%b %b%b HTTP/1.1" % (self.method, self.path, self.query),
            b"host: " + (self.host or b"localhost"),
            b"x-request-id: " + (self.request_id or b""),
            b"x-llmgw-peer: " + self.client.peer,
        ]
        if self.has_body or self.method in (b"POST", b"PUT", b"PATCH"):
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n" + block([*self.head, *(self.private or ())]) + b"\r\n"

    # --- what comes back

    def answer_wanted(self, connection: UpstreamConnection) -> bool:
        """Whether this answer is for the client. If not, the exchange has gone elsewhere."""
        if connection.status in (401, 403) and self.dialect is not None and not self.head_sent:
            connection.let_go()
            self._denied(connection.status)
            return False
        return True

    def answer_came(self, connection: UpstreamConnection, payload: bytes) -> None:
        """A part of the answer; more is to come. The head waits for the first byte of the body,
        so that an answer that dies before it can still be asked for elsewhere (W28)."""
        self.touched = self.hub.now
        if self.head_sent:
            self._relay(payload)
        elif self.answer_wanted(connection) and payload:
            self.first_ns = monotonic_ns()
            self.phase = RELAYING
            self._start(connection, payload, whole=False)

    def answer_ended(self, connection: UpstreamConnection, payload: bytes) -> None:
        """The answer is complete with this part."""
        if self.head_sent:
            self._relay(payload, last=True)
        else:
            self.first_ns = monotonic_ns()
            self._start(connection, payload, whole=True)
        assert self.endpoint is not None
        self.endpoint.succeeded()
        self.finish()

    def _start(self, connection: UpstreamConnection, payload: bytes, *, whole: bool) -> None:
        self.head_sent = True
        self.status = connection.status
        self.framing = framing = framing_of(connection, http10=self.http10, whole=whole)
        if framing == BY_CLOSE or self.hub.draining:
            self.keep = False
        head = answer_head(
            connection,
            framing,
            request_id=self.request_id or b"",
            date=self.hub.date,
            keep=self.keep,
            http10=self.http10,
            cold=self.dialect is None,
            length=len(payload) if whole else None,
        )
        if connection.is_stream and self.dialect is not None:
            self.hub.counters[_STREAMS] += 1
            if connection.encoding is None:
                self.tail = EventTail(self.dialect)
                self.tail.note(payload)
        self.bytes_out += len(payload)
        if self.method == b"HEAD":
            self.client.transport.write(head)
        elif framing == BY_CHUNKS:
            if not payload:
                self.client.transport.write(head + b"0\r\n\r\n" if whole else head)
            else:
                end = b"\r\n0\r\n\r\n" if whole else b"\r\n"
                self.client.transport.write(b"%b%x\r\n%b%b" % (head, len(payload), payload, end))
        else:
            self.client.transport.write(head + payload)

    def _relay(self, payload: bytes, *, last: bool = False) -> None:
        transport = self.client.transport
        if payload:
            self.bytes_out += len(payload)
            if self.tail is not None:
                self.tail.note(payload)
            if self.framing == BY_CHUNKS:
                transport.write(
                    b"%x\r\n%b\r\n0\r\n\r\n" % (len(payload), payload)
                    if last
                    else b"%x\r\n%b\r\n" % (len(payload), payload)
                )
            else:
                transport.write(payload)
        elif last and self.framing == BY_CHUNKS:
            transport.write(b"0\r\n\r\n")

    def answer_closed(self, connection: UpstreamConnection) -> None:
        """An answer whose end is the close, closed. Only what it said tells an end from a death (W25)."""
        if not self.head_sent:
            if not self.answer_wanted(connection):
                return
            if connection.is_stream:
                self._lost_unanswered()
            else:
                self.answer_ended(connection, b"")
        elif self.tail is None or self.tail.finished:
            self.answer_ended(connection, b"")
        else:
            self.interrupt(errors.INTERRUPTED, "The engine closed the stream before its end.")

    def answer_lost(self, connection: UpstreamConnection) -> None:
        """The connection is gone in the middle of things."""
        if self.head_sent:
            self.interrupt(errors.INTERRUPTED, "The connection to the engine was lost.")
        elif connection.reused and not connection.responded:
            # It had been closed while it lay in the pool: no fault of the engine, and no second chance
            # on another pooled one, which is as old (W54).
            self.hub.counters[_RETRIES_STALE] += 1
            assert self.endpoint is not None
            self.upstream = None
            self._open(self.endpoint)
        else:
            self._lost_unanswered()

    def answer_invalid(self, connection: UpstreamConnection, why: str) -> None:
        """What comes is not HTTP any more; what was good has been relayed."""
        connection.let_go()
        if self.head_sent:
            self.interrupt(errors.INTERRUPTED, f"The engine's answer cannot be followed: {why}.")
        else:
            self._fail(errors.UPSTREAM_INVALID, f"The engine's answer is unusable: {why}.", again=True)

    def _lost_unanswered(self) -> None:
        # Sent, and no byte back: generation has no side effects, so one more engine may be asked.
        again, self.resent = not self.resent, True
        self._fail(errors.UNREACHABLE, "The engine closed the connection without an answer.", again=again)

    def _denied(self, status: int) -> None:
        # A reused port, or a credential that changed: a stale endpoint, not a bad caller.
        self._fail(errors.UPSTREAM_DENIED, f"The engine refused this router ({status}).", again=True)

    def _fail(self, kind: Kind, message: str, *, again: bool) -> None:
        """Blame the endpoint; ask another one while the client has seen nothing, or say so."""
        hub = self.hub
        endpoint = self.endpoint
        assert endpoint is not None
        self.endpoint = None
        self.upstream = None
        if kind.type == errors.UNREACHABLE.type:
            # Ours, a bug or a stop, are no fault of it.
            endpoint.failed(hub.now)
        endpoint.release()
        if isinstance(endpoint, ColdEndpoint):
            self.refuse(
                errors.COLD_AWAY,
                "This part of the router is not answering; inference is not affected.",
                retry_after_s=2,
            )
            return
        tried = self.tried = self.tried or []
        tried.append(endpoint)
        if again and len(tried) <= hub.limits.max_retries and self.model is not None:
            target = hub.targets.get(self.model)
            other = (
                None
                if target is None
                else pick(target.endpoints, now=hub.now, chance=hub.chance(), tried=tried)
            )
            if other is not None:
                hub.counters[_RETRIES_OTHER] += 1
                self.send(other)
                return
        self.refuse(kind, message)

    # --- how it ends

    def refuse_cold(self, model: ModelRow) -> None:
        """No endpoint, and nothing to wait for (W12)."""
        because = f": {model.reason}" if model.reason else ""
        self.refuse(
            errors.NO_REPLICA,
            f"No replica of the model `{model.name}` can answer now{because}.",
            retry_after_s=errors.retry_after(_told(model), default_s=10.0),
        )

    def refuse_loading(self, model: ModelRow, why: str) -> None:
        """Being started, but not in time for this request (W11)."""
        self.refuse(
            errors.MODEL_LOADING,
            f"The model `{model.name}` is loading and {why}.",
            retry_after_s=errors.retry_after(_told(model), default_s=10.0),
        )

    def refuse(
        self,
        kind: Kind,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: int | None = None,
        allow: bytes | None = None,
    ) -> None:
        """Answer with an error of ours. Only while nothing was sent and no endpoint is taken."""
        assert not self.head_sent
        if kind.close or self.hub.draining:
            self.keep = False
        self.status = kind.status
        self.code = code or kind.label
        self.hub.counters[COUNTER[f"refused_{kind.label}"]] += 1
        answer = errors.answer(
            kind,
            message,
            request_id=self.request_id or b"",
            code=code,
            retry_after_s=retry_after_s,
            allow=allow,
            close=not self.keep,
            head_only=self.method == b"HEAD",
        )
        self.head_sent = True
        self.client.transport.write(answer)
        self.finish()

    def interrupt(self, kind: Kind, message: str) -> None:
        """Cut in mid-answer: say so in band where the format can, and never end it cleanly without."""
        self.code = kind.label
        counters = self.hub.counters
        counters[COUNTER[f"refused_{kind.label}"]] += 1
        endpoint = self.endpoint
        if endpoint is not None and kind.type == errors.INTERRUPTED.type:
            endpoint.broke(self.hub.now)
        self.keep = False
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            if upstream.exchange is self:
                upstream.let_go()
        if self.tail is None:
            self.client.cut(reset=self.framing == BY_CLOSE)
        else:
            counters[_STREAMS_BROKEN] += 1
            self._relay(self.tail.interruption(kind, message), last=True)
        self.finish()

    def stop_upstream(self, kind: Kind, message: str) -> None:
        """A deadline of ours has passed: let the engine go, then tell the client as far as it can be told."""
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            upstream.let_go()
        if self.head_sent:
            self.interrupt(kind, message)
        elif self.endpoint is None:
            self.refuse(kind, message)
        else:
            self._fail(kind, message, again=kind is errors.TIMEOUT_CONNECT)

    def client_left(self) -> None:
        """Nobody reads any more: stop the engine now, whatever it was doing (W31)."""
        self.status = 499
        if self.phase == HELD:
            self.hub.room.leave(self)
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            upstream.let_go()
        self.finish()

    def park(self, connection: UpstreamConnection) -> None:
        """The connection has answered and may be used again."""
        limits = self.hub.limits
        endpoint = connection.endpoint
        if self.client.paused:
            connection.transport.resume_reading()
        if endpoint.leaving or len(endpoint.idle) >= limits.upstream_idle_max:
            connection.transport.close()
        else:
            connection.idle_since = self.hub.now
            endpoint.idle.append(connection)

    def finish(self) -> None:
        """The one way out: give the endpoint back, account, and free the client for its next request."""
        endpoint = self.endpoint
        if endpoint is not None:
            self.endpoint = None
            endpoint.release()
            self.hub.account(self, endpoint)
        else:
            self.hub.account(self, None)
        self.upstream = None
        self.phase = OVER
        self.client.exchange_over(self)


def _told(model: ModelRow) -> float | None:
    return model.eta_s if model.retry_after_s is None else model.retry_after_s
