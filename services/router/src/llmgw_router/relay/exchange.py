"""One request and its answer: routed, held, sent, asked again, relayed, ended. A chain of plain calls.

Invariants. An endpoint taken is released exactly once, on whichever path the exchange ends. Until
`head_sent` the client has seen nothing and another endpoint may be asked; from then on the only
choices are to go on, to end, and to say that it was cut. A clean end is never made up.
"""

from time import monotonic_ns
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.errors import Kind
from llmgw_router.core.heartbeat import only_comments
from llmgw_router.core.routes import RESPONSES
from llmgw_router.core.table import ModelRow, Waiting, while_cold
from llmgw_router.relay.accounting import CONNECT
from llmgw_router.relay.blame import blame, explain
from llmgw_router.relay.ending import Ending
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.held import ask_next, next_to_ask, note_response
from llmgw_router.relay.opening import ERROR_EVENT, opened
from llmgw_router.relay.phase import ARRIVING, CONNECTING, HELD, RELAYING, WAITING
from llmgw_router.relay.room import refuse_cold
from llmgw_router.relay.slots import COUNTER
from llmgw_router.relay.tls import reason_of
from llmgw_router.relay.upstream import BUSY, DENIALS, NOT_HERE, UpstreamConnection

if TYPE_CHECKING:
    from llmgw_router.core.choosing.affinity import Match
    from llmgw_router.core.choosing.decision import Decision
    from llmgw_router.core.choosing.prompts import Said
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.endpoint import Endpoint, EngineEndpoint
    from llmgw_router.relay.reading import Spot

_RETRIES_STALE = COUNTER["retries_stale"]
_CONNECTS = COUNTER["upstream_connects"]
_ERROR_EVENTS = COUNTER["error_events"]
#: A stream that begins so may begin with a comment: a colon, or the end of a line.
_NO_FIELD = b":\r\n"


class Exchange(Ending):
    """Begins as a request that arrives; lives until its answer has left or its client has."""

    __slots__ = (
        "asking",
        "decision",
        "hold_until",
        "in_comment",
        "match",
        "opening",
        "policy",
        "resent",
        "said",
        "since",
        "spot",
        "started",
        "touched",
    )

    #: While it waits; in the loop's clock.
    hold_until: float
    #: When it was whole; set as it is routed.
    started: float

    def __init__(self, client: "ClientConnection") -> None:
        # By name, as in its bases: `super()` costs as much as all these fields.
        Ending.__init__(self, client)
        #: Asked again after it had been sent once.
        self.resent = False
        #: Its body as it was decoded for the model's name, until its endpoint is chosen. None: it was not.
        self.said: Said | None = None
        #: Where the model's name stands in the body, if that is known.
        self.spot: Spot | None = None
        #: Who else may hold the response that is asked for; None: it is not about one.
        self.asking: list[EngineEndpoint] | None = None
        #: What was passed on of a stream ended inside a comment.
        self.in_comment = False
        #: First bytes of a stream that may be an error's.
        self.opening = b""
        #: What is known of its prompt or session; None: nothing, or there was nothing to choose.
        self.match: Match | None = None
        #: The rule that chose its endpoint (core/choosing/picking.py); "": none was chosen.
        self.policy = ""
        #: Why it went there; made only for who may see it.
        self.decision: Decision | None = None

    # --- where it goes

    def dispatch(self, endpoints: "tuple[EngineEndpoint, ...]", model: ModelRow) -> None:
        """Send it to the best of `endpoints`; without one, hold it or refuse it."""
        hub = self.hub
        best = hub.choosing.choose(self, endpoints) if endpoints else None
        # Not for as long as it waits or streams.
        self.said = None
        if best is not None:
            queue = hub.queue
            if queue.limited or (queue.heeds and best.row.concurrency is not None):
                best = queue.enter(self, best, endpoints, model)
                if best is None:
                    return
            # Reading the clock can cost as much as all the rest of a pick (half a microsecond on some
            # virtual machines), so an exchange reads it when it begins, at its first byte, and at its end.
            self.send(best, self.started_ns if self.phase == ARRIVING else monotonic_ns())
        elif endpoints:
            hub.choosing.refuse(self, model, endpoints)
        elif while_cold(model) is Waiting.HOLD and not hub.draining:
            hub.room.admit(self, model)
        else:
            refuse_cold(self, model)

    def send(self, endpoint: "Endpoint", now_ns: int) -> None:
        """Take the endpoint; ask it on a pooled connection, or on a new one."""
        endpoint.take(now_ns)
        self.endpoint = self.asked = endpoint
        if self.meter is None and not self.hub.metering.off:
            self.meter = self.hub.metering.meter(self)
        self.sent_ns = now_ns
        if self.phase == HELD:
            self.held_ns = now_ns - self.started_ns - self.queued_ns
        match = self.match
        if endpoint.ejected or (match is not None and endpoint.name not in match.settled):
            self.hub.choosing.departs(self, endpoint)
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
        began_ns = monotonic_ns()
        where = endpoint.where
        try:
            connection = await endpoint.connect(
                self.hub.loop, lambda: UpstreamConnection(endpoint), self.hub.contexts
            )
        except (OSError, ValueError) as error:
            # ValueError: a host that is no name.
            self.connecting = None
            why = f"The engine cannot be reached: {reason_of(error)}."
            self.hub.guard(self, self._fail, errors.UNREACHABLE, why, again=True)
        except Exception:
            self.connecting = None
            self.hub.bug(self)
        else:
            self.connecting = None
            connection.where = where
            self.connect_ns = monotonic_ns() - began_ns
            CONNECT.add(self.hub.counters, self.connect_ns // 1000)
            self.hub.guard(self, self._begin, connection)

    def _begin(self, connection: UpstreamConnection) -> None:
        self.phase = WAITING
        self.since = self.touched = self.hub.now
        self.upstream = connection
        self.opening = b""
        if self.client.paused:
            connection.transport.pause_reading()
        endpoint = self.endpoint
        assert endpoint is not None
        head = self.cold_head() if isinstance(endpoint, ColdEndpoint) else self.engine_head(endpoint)
        connection.begin(self, head, self.body)

    # --- what comes back

    def answer_wanted(self, connection: UpstreamConnection) -> bool:
        """Whether this answer is for the client. If not, the exchange has gone elsewhere."""
        endpoint = self.endpoint
        if self.head_sent or endpoint is None or isinstance(endpoint, ColdEndpoint):
            return True
        if self.asking and connection.status in NOT_HERE:
            connection.let_go()
            return not ask_next(self)
        if connection.status in DENIALS:
            # A reused port, or a credential that changed: a stale endpoint, not a bad caller (W15).
            connection.let_go()
            self._fail(
                errors.UPSTREAM_DENIED, f"The engine refused this router ({connection.status}).", again=True
            )
            return False
        if connection.status in BUSY:
            # It is alive and has said when to come back (HO14); nobody is blamed.
            endpoint.busy(self, connection.retry_after_s())
            other = self.another(endpoint)
            if other is not None:
                connection.let_go()
                endpoint.release(monotonic_ns(), self)
                self.endpoint = self.upstream = None
                self.hub.accounts.retried("busy")
                self.send(other, monotonic_ns())
                return False
        return True

    def answer_came(self, connection: UpstreamConnection, payload: bytes) -> None:
        """A part of the answer; more is to come. The head waits for the first byte of the body,
        so that an answer that dies before it can still be asked for elsewhere (W28)."""
        self.touched = self.hub.now
        if self.head_sent:
            if self.phase == WAITING and not self._only_comments(payload):
                self._first_said(connection, payload)
            self.pass_on(payload if self.meter is None else self.meter.part(self, connection, payload))
        elif self.answer_wanted(connection) and payload:
            if connection.is_stream and connection.encoding is None and self.entry is not None:
                payload = opened(self, connection, payload, whole=False)
                if not payload:
                    return
            self._begin_answer(connection, payload)

    def _begin_answer(self, connection: UpstreamConnection, payload: bytes) -> None:
        if not (connection.is_stream and payload[0] in _NO_FIELD and self._only_comments(payload)):
            self._first_said(connection, payload)
        if self.decision is not None:
            explain(self, connection, self.decision)
        # From here on nobody else is asked, and a stream may last for an hour.
        self.match = self.decision = None
        if self.meter is not None:
            payload = self.meter.first(self, connection, payload)
        self.start_answer(connection, payload, whole=False)
        if self.committed and self.tail is None:
            # It was told as an error: the rest of it has no place in the client's stream.
            self._stop_answer(connection)

    def _only_comments(self, payload: bytes) -> bool:
        """Whether a stream still says nothing but that it lives: no first byte of an answer (W29)."""
        only, self.in_comment = only_comments(payload, within=self.in_comment)
        return only

    def _first_said(self, connection: UpstreamConnection, payload: bytes) -> None:
        self.first_ns = monotonic_ns()
        self.phase = RELAYING
        if self.dialect is RESPONSES:
            note_response(self, payload)
        endpoint = self.endpoint
        assert endpoint is not None
        if connection.is_stream or endpoint.ejected:
            waited_ns = self.first_ns - self.sent_ns if connection.is_stream else None
            endpoint.began(self, connection.status, waited_ns)

    def open_anyway(self) -> None:
        """What looked like the beginning of an error does not go on: the client gets it as it is."""
        if self.upstream is not None and self.opening:
            payload, self.opening = self.opening, b""
            self._begin_answer(self.upstream, payload)

    def answer_ended(self, connection: UpstreamConnection, payload: bytes) -> None:
        """The answer is complete with this part."""
        now_ns = monotonic_ns()
        if self.head_sent:
            if self.meter is not None:
                payload = self.meter.end(self, connection, payload, now_ns)
            self.pass_on(payload, last=True)
        else:
            if connection.is_stream and connection.encoding is None and self.entry is not None:
                payload = opened(self, connection, payload, whole=True)
                if not payload:
                    return
            self.first_ns = now_ns
            if self.dialect is RESPONSES:
                note_response(self, payload)
            if self.decision is not None:
                explain(self, connection, self.decision)
            if self.meter is not None:
                payload = self.meter.whole(self, connection, payload, now_ns)
            self.start_answer(connection, payload, whole=True)
        endpoint = self.endpoint
        assert endpoint is not None
        failure = None if self.tail is None else self.tail.failure()
        if failure is None:
            endpoint.ended(self, connection.status)
            if (
                connection.is_stream
                and self.first_ns
                and not isinstance(endpoint, ColdEndpoint)
                # Else its client has made the pace.
                and self.client.last_paused < self.started
            ):
                endpoint.speed.streamed(self.bytes_out, (now_ns - self.first_ns) / 1e9)
        else:
            # All of it has been passed on as it came; it counts as the failure that it is (HO02).
            self.code = ERROR_EVENT
            self.hub.counters[_ERROR_EVENTS] += 1
            if failure.status >= 500:
                endpoint.broke(self)
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
            self._fail_sent(errors.UPSTREAM_INVALID, f"The engine's answer is unusable: {why}.")

    def _lost_unanswered(self) -> None:
        self._fail_sent(errors.UNREACHABLE, "The engine closed the connection without an answer.")

    def _fail_sent(self, kind: Kind, message: str) -> None:
        # Generation has no side effects but its cost, so one more engine may be asked, and only one.
        again, self.resent = not self.resent, True
        self._fail(kind, message, again=again)

    def _fail(self, kind: Kind, message: str, *, again: bool) -> None:
        """Blame the endpoint; ask another one while the client has seen nothing, or say so."""
        hub = self.hub
        endpoint = self.endpoint
        assert endpoint is not None
        self.upstream = None
        if kind.type == errors.UNREACHABLE.type and not isinstance(endpoint, ColdEndpoint):
            # Ours, a bug or a stop, are no fault of it.
            blame(self, endpoint, kind)
        self.endpoint = None
        endpoint.release(monotonic_ns(), self)
        if isinstance(endpoint, ColdEndpoint):
            self.refuse(
                errors.COLD_AWAY,
                "This part of the router is not answering; inference is not affected.",
                retry_after_s=2,
            )
            return
        other = self.another(endpoint) if again else None
        if other is None:
            self.refuse(kind, message)
        else:
            refused = kind is errors.UNREACHABLE and self.phase == CONNECTING
            hub.accounts.retried("connect" if refused else kind.label)
            self.send(other, monotonic_ns())

    def another(self, failed: "EngineEndpoint") -> "EngineEndpoint | None":
        """Where to ask instead, by the newest table; None: nowhere, or asked often enough."""
        if self.asking is not None:
            self.tried = [*(self.tried or ()), failed]
            return next_to_ask(self)
        return self.hub.choosing.again(self, failed)

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

    def _stop_answer(self, connection: UpstreamConnection) -> None:
        """The client has all it can have of this answer, which is not over."""
        self.upstream = None
        if connection.exchange is self:
            connection.let_go()
        if self.endpoint is not None:
            self.endpoint.ended(self, connection.status)
        self.finish(monotonic_ns())
