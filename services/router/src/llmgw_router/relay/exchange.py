"""One request and its answer: routed, held, sent, asked again, relayed, ended. A chain of plain calls.

Invariants. An endpoint taken is released exactly once, on whichever path the exchange ends. Until
`head_sent` the client has seen nothing and another endpoint may be asked; from then on the only
choices are to go on, to end, and to say that it was cut. A clean end is never made up.
"""

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.body import BodyRefused, model_of, with_model
from llmgw_router.core.errors import Kind
from llmgw_router.core.heads import named_by_connection, without
from llmgw_router.core.paths import BadPath, split
from llmgw_router.core.policy import pick
from llmgw_router.core.routes import HOT, HOT_METHODS
from llmgw_router.core.table import ModelRow, Waiting, while_cold
from llmgw_router.relay.answer import BY_CLOSE
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.phase import ARRIVING, CONNECTING, HELD, OVER, RELAYING, WAITING
from llmgw_router.relay.relaying import Relaying
from llmgw_router.relay.room import refuse_cold, refuse_loading
from llmgw_router.relay.slots import COUNTER
from llmgw_router.relay.upstream import DENIALS, UpstreamConnection

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.endpoint import Endpoint, EngineEndpoint

_RETRIES_STALE = COUNTER["retries_stale"]
_RETRIES_OTHER = COUNTER["retries_other"]
_COLD = COUNTER["cold_requests"]
_CONNECTS = COUNTER["upstream_connects"]
_STREAMS_BROKEN = COUNTER["streams_broken"]


class Exchange(Relaying):
    """Begins as a request that arrives; lives until its answer has left or its client has."""

    __slots__ = (
        "connecting",
        "endpoint",
        "hold_until",
        "model",
        "phase",
        "resent",
        "since",
        "started",
        "started_ns",
        "touched",
        "tried",
        "upstream",
    )

    def __init__(self, client: "ClientConnection") -> None:
        super().__init__(client)
        self.phase: int = ARRIVING
        #: The catalog's name for it, also where the request used an alias.
        self.model: str | None = None
        #: Taken, to be released.
        self.endpoint: Endpoint | None = None
        self.upstream: UpstreamConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.tried: list[EngineEndpoint] | None = None
        #: Asked again after it had been sent once.
        self.resent = False

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
            self.send(hub.cold, self.started_ns)
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
            # Reading the clock can cost as much as all the rest of a pick (half a microsecond on some
            # virtual machines), so an exchange reads it when it begins, at its first byte, and at its end.
            self.send(best, self.started_ns if self.phase == ARRIVING else monotonic_ns())
        elif while_cold(model) is Waiting.HOLD and not hub.draining:
            if hub.room.admit(self, model):
                self.phase = HELD
                self.hold_until = hub.now + model.hold_timeout_s
            else:
                refuse_loading(self, model, "too many requests already wait for it")
        else:
            refuse_cold(self, model)

    def send(self, endpoint: "Endpoint", now_ns: int) -> None:
        """Take the endpoint; ask it on a pooled connection, or on a new one."""
        endpoint.take(now_ns)
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
        endpoint = self.endpoint
        assert endpoint is not None
        head = self.cold_head() if isinstance(endpoint, ColdEndpoint) else self.engine_head(endpoint)
        connection.begin(self, head, self.body)

    # --- what comes back

    def answer_wanted(self, connection: UpstreamConnection) -> bool:
        """Whether this answer is for the client. If not, the exchange has gone elsewhere."""
        if connection.status in DENIALS and self.dialect is not None and not self.head_sent:
            connection.let_go()
            self._denied(connection.status)
            return False
        return True

    def answer_came(self, connection: UpstreamConnection, payload: bytes) -> None:
        """A part of the answer; more is to come. The head waits for the first byte of the body,
        so that an answer that dies before it can still be asked for elsewhere (W28)."""
        self.touched = self.hub.now
        if self.head_sent:
            self.pass_on(payload)
        elif self.answer_wanted(connection) and payload:
            self.first_ns = monotonic_ns()
            self.phase = RELAYING
            self.start_answer(connection, payload, whole=False)

    def answer_ended(self, connection: UpstreamConnection, payload: bytes) -> None:
        """The answer is complete with this part."""
        now_ns = monotonic_ns()
        if self.head_sent:
            self.pass_on(payload, last=True)
        else:
            self.first_ns = now_ns
            self.start_answer(connection, payload, whole=True)
        assert self.endpoint is not None
        self.endpoint.succeeded()
        self.finish(now_ns)

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
        endpoint.release(monotonic_ns())
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
                self.send(other, monotonic_ns())
                return
        self.refuse(kind, message)

    # --- how it ends

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
        self.finish(monotonic_ns())

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
            self.pass_on(self.tail.interruption(kind, message), last=True)
        self.finish(monotonic_ns())

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
        self.finish(monotonic_ns())

    def finish(self, now_ns: int) -> None:
        """The one way out: give the endpoint back, account, and free the client for its next request."""
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is not None:
            endpoint.release(now_ns)
        self.hub.account(self, endpoint, now_ns)
        self.upstream = None
        self.phase = OVER
        self.client.exchange_over(self)
