"""How an exchange ends: refused, interrupted, left by its client, or complete. Always through `finish`."""

import asyncio
from dataclasses import replace
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from llmgw_router.core import errors
from llmgw_router.core.errors import Kind
from llmgw_router.relay.answer import BY_CLOSE
from llmgw_router.relay.cors import shown
from llmgw_router.relay.heartbeat import fail
from llmgw_router.relay.phase import ARRIVING, OVER
from llmgw_router.relay.relaying import Relaying
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.endpoint import Endpoint, EngineEndpoint
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.ipc import TraceIds
    from llmgw_router.relay.metering import Meter
    from llmgw_router.relay.model_queue import ModelQueue
    from llmgw_router.relay.queueing import Queueing
    from llmgw_router.relay.room import WaitingRoom
    from llmgw_router.relay.upstream import UpstreamConnection

#: Refusals that come of a limit; others may follow a limit that another endpoint has made up for.
_OF_LIMITS = frozenset(
    (
        errors.MODEL_LOADING,
        errors.QUEUE_FULL,
        errors.QUEUE_TIMEOUT,
        errors.TIMEOUT_CONNECT,
        errors.TIMEOUT_FIRST_BYTE,
        errors.TIMEOUT_TOTAL,
    )
)

_ENGINE_ABORTS = COUNTER["engine_aborts"]
_STREAMS_BROKEN = COUNTER["streams_broken"]


class Ending(Relaying):
    """What an exchange holds and must give back, and the ways in which it does."""

    __slots__ = (
        "alias",
        "asked",
        "connect_ns",
        "connecting",
        "endpoint",
        "held_ns",
        "held_tenant",
        "limit",
        "meter",
        "model",
        "phase",
        "pinned",
        "place",
        "profile",
        "queue_began_ns",
        "queued_ns",
        "sent_ns",
        "started_ns",
        "trace",
        "tried",
        "upstream",
        "waits",
    )

    def __init__(self, client: "ClientConnection") -> None:
        Relaying.__init__(self, client)
        self.phase: int = ARRIVING
        #: CLOCK_MONOTONIC when it was whole and its way was chosen; 0 before.
        self.started_ns = 0
        #: When it last departed for an endpoint; 0: never.
        self.sent_ns = 0
        #: Spent before that: in a queue, held for a cold model; and connecting. 0: not at all.
        self.queued_ns = self.held_ns = self.connect_ns = 0
        #: Set by the tracer where this exchange is sampled.
        self.trace: TraceIds | None = None
        #: Its deadlines; what the configuration says when it is routed.
        self.profile = self.hub.default_profile
        #: The catalog's name for it, also where the request used an alias.
        self.model: str | None = None
        #: The name that the request used, where it was another.
        self.alias: str | None = None
        #: What it uses; None: nothing that anybody counts.
        self.meter: Meter | None = None
        #: Taken, to be released.
        self.endpoint: Endpoint | None = None
        #: The one that it was sent to last, also after its release: records name it. None: to nobody.
        self.asked: Endpoint | None = None
        self.upstream: UpstreamConnection | None = None
        self.connecting: asyncio.Task[None] | None = None
        #: Where it waits, to be left; and its place at its model's gate, to be given back.
        self.waits: WaitingRoom | Queueing | None = None
        self.place: ModelQueue | None = None
        self.held_tenant: str | None = None
        #: The only replica that will do, where it goes on with what that one holds.
        self.pinned: EngineEndpoint | None = None
        self.queue_began_ns = 0
        #: The limit of ours that fired, as `x-llmgw-limit` says it.
        self.limit: bytes | None = None
        #: Asked in vain.
        self.tried: list[EngineEndpoint] | None = None

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
        if self.committed:
            self.status = 200
            fail(self, kind if code is None else replace(kind, code=code), message, retry_after_s)
            return
        answer = errors.answer(
            kind,
            message,
            request_id=self.request_id or b"",
            code=code,
            retry_after_s=retry_after_s,
            allow=allow,
            close=not self.keep,
            head_only=self.method == b"HEAD",
            fired=self.limit if kind in _OF_LIMITS else None,
        )
        if self.origin is not None:
            answer = shown(answer, self.origin)
        self.head_sent = True
        if self.meter is not None:
            self.meter.close(self, kind.status, monotonic_ns(), complete=False)
        self.client.transport.write(answer)
        self.finish(monotonic_ns())

    def answer_at_once(self, status: int, answer: bytes) -> None:
        """Send a whole answer of ours that is no refusal."""
        self.status = status
        self.head_sent = True
        self.client.transport.write(answer)
        self.finish(monotonic_ns())

    def interrupt(self, kind: Kind, message: str) -> None:
        """Cut in mid-answer: say so in band where the format can, and never end it cleanly without."""
        self.code = kind.label
        counters = self.hub.counters
        counters[COUNTER[f"refused_{kind.label}"]] += 1
        endpoint = self.endpoint
        if endpoint is not None and kind.type == errors.INTERRUPTED.type and kind is not errors.TIMEOUT_TOTAL:
            # A stream that flows until our own total is over has not failed.
            endpoint.broke(self)
        self.keep = False
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            if upstream.exchange is self:
                upstream.let_go()
        rest = b"" if self.meter is None else self.meter.cut(self, monotonic_ns())
        if self.tail is None:
            self.client.cut(reset=self.framing == BY_CLOSE)
        else:
            counters[_STREAMS_BROKEN] += 1
            if rest:
                self.pass_on(rest)
            self.pass_on(self.tail.interruption(kind, message), last=True)
        self.finish(monotonic_ns())

    def client_left(self) -> None:
        """Nobody reads any more: stop the engine now, whatever it was doing (W31)."""
        self.status = 499
        if self.connecting is not None:
            self.connecting.cancel()
            self.connecting = None
        if self.upstream is not None:
            upstream, self.upstream = self.upstream, None
            upstream.let_go()
            self.hub.counters[_ENGINE_ABORTS] += 1
        self.finish(monotonic_ns())

    def finish(self, now_ns: int) -> None:
        """The one way out: give the endpoint back, account, and free the client for its next request."""
        if self.meter is not None:
            self.meter.close(self, self.status, now_ns, complete=False)
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is not None:
            endpoint.release(now_ns, self)
        if self.waits is not None:
            self.waits.leave(cast("Exchange", self))
        if self.place is not None:
            self.hub.queue.give_back(cast("Exchange", self))
        self.hub.accounts.close(self, self.asked, now_ns)
        self.upstream = None
        self.phase = OVER
        self.client.exchange_over(self)
