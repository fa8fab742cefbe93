"""What an exchange says of the endpoint that it was sent to: its fault, or why it was chosen."""

from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.choosing.standing import Reason
from llmgw_router.relay.phase import CONNECTING

if TYPE_CHECKING:
    from llmgw_router.core.choosing.decision import Decision
    from llmgw_router.core.errors import Kind
    from llmgw_router.relay.endpoint import EngineEndpoint
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.upstream import UpstreamConnection


def blame(exchange: "Exchange", endpoint: "EngineEndpoint", kind: "Kind") -> None:
    """No answer came from there that the client could have had; `kind` is what it would be told."""
    connecting = exchange.phase == CONNECTING
    if kind is errors.TIMEOUT_TOTAL:
        # Never decisive: how long it had is what others have left of the total.
        if _waited_longest_there(exchange):
            endpoint.unanswered(exchange, Reason.UNREACHABLE if connecting else Reason.FAILING)
    elif connecting:
        endpoint.unanswered(exchange, Reason.UNREACHABLE, decisive=True)
    elif kind is errors.UPSTREAM_DENIED:
        endpoint.unanswered(exchange, Reason.DENIED, decisive=True)
    else:
        endpoint.unanswered(exchange, Reason.FAILING)


def _waited_longest_there(exchange: "Exchange") -> bool:
    """A total that was spent elsewhere, in a queue or at another engine, is no fault of this one."""
    return exchange.hub.now - exchange.since > (exchange.profile.total_s or 0.0) / 2


def explain(exchange: "Exchange", connection: "UpstreamConnection", decision: "Decision") -> None:
    """Let the answer's head say why it comes from there."""
    endpoint = exchange.endpoint
    name = None if endpoint is None else endpoint.name
    # A list of its own: the head may be one that is shared (relay/known_heads.py).
    connection.head = [*connection.head, b"x-llmgw-decision: " + decision.at(name).header()]
