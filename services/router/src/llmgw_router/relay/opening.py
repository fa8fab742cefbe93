"""The first bytes of a stream, looked at before the client gets a status (HO02)."""

from time import monotonic_ns
from typing import TYPE_CHECKING

from llmgw_router.core.choosing.standing import Reason
from llmgw_router.core.first_event import PASS, WAIT, Failure, judge
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.slots import COUNTER
from llmgw_router.relay.upstream import BUSY, DENIALS

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.upstream import UpstreamConnection

_ERROR_EVENTS = COUNTER["error_events"]

#: In the access log, for an answer that is the engine's own and a failure nonetheless.
ERROR_EVENT = "error_event"


def opened(exchange: "Exchange", connection: "UpstreamConnection", payload: bytes, *, whole: bool) -> bytes:
    """What to begin the answer with; empty: not yet, or another way has been taken."""
    data = exchange.opening + payload
    judged = judge(data, whole=whole)
    if judged == PASS:
        exchange.opening = b""
        return data
    if judged == WAIT:
        exchange.opening = data
        return b""
    assert isinstance(judged, Failure)
    exchange.opening = b""
    _failed(exchange, connection, judged)
    return b""


def _failed(exchange: "Exchange", connection: "UpstreamConnection", failure: Failure) -> None:
    hub = exchange.hub
    hub.counters[_ERROR_EVENTS] += 1
    endpoint = exchange.endpoint
    assert endpoint is not None
    exchange.upstream = None
    if connection.exchange is exchange:
        connection.let_go()
    connection.status = failure.status
    if failure.status in DENIALS or failure.status in BUSY:
        # As if it had been the status from the beginning.
        if not exchange.answer_wanted(connection):
            return
    elif failure.status >= 500:
        endpoint.unanswered(exchange, Reason.FAILING)
        if _ask_instead(exchange):
            return
    else:
        # It judges the request: it is alive (HO25).
        endpoint.ended(exchange, failure.status)
    exchange.code = ERROR_EVENT
    connection.is_stream = False
    connection.content_type = b"application/json"
    connection.length = b"%d" % len(failure.content)
    exchange.first_ns = monotonic_ns()
    exchange.start_answer(connection, failure.content, whole=True)
    exchange.finish(exchange.first_ns)


def _ask_instead(exchange: "Exchange") -> bool:
    """Whether another endpoint is asked now, since this one has failed before anything was passed on."""
    endpoint = exchange.endpoint
    if exchange.resent or endpoint is None or isinstance(endpoint, ColdEndpoint):
        return False
    exchange.resent = True
    other = exchange.another(endpoint)
    if other is None:
        return False
    now_ns = monotonic_ns()
    endpoint.release(now_ns, exchange)
    exchange.endpoint = exchange.upstream = None
    exchange.hub.accounts.retried("error_event")
    exchange.send(other, now_ns)
    return True
