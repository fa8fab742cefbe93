"""Requests about a response that exists: they go to the replica that holds it, and to no other.

A router that never saw it made, because it was another one or has been restarted, asks the replicas in
turn until one knows it. Only a few: behind one request of a client there may not stand a hundred of ours.
"""

from time import monotonic_ns
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.body import continued_response
from llmgw_router.core.keys import KeyRow, may_use
from llmgw_router.core.routes import response_id
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.pins import id_in

if TYPE_CHECKING:
    from llmgw_router.relay.endpoint import EngineEndpoint
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.live_routes import LiveTarget

#: Replicas asked for one response that nobody remembers.
ASK_AT_MOST = 16


def ask_holder(exchange: "Exchange") -> None:
    """Send it to the replica that holds the response; or to several, one after the other."""
    hub = exchange.hub
    key = exchange.key
    able = [
        endpoint
        for endpoint in hub.routes.endpoints()
        if not endpoint.leaving and (key is None or _serves(endpoint, key))
    ]
    wanted = response_id(exchange.path)
    holder = hub.pins.holder(wanted, able)
    if holder is not None:
        exchange.asking = []
    else:
        start = int(hub.chance() * len(able))
        exchange.asking = (able[start:] + able[:start])[:ASK_AT_MOST]
        if exchange.asking:
            holder = exchange.asking.pop()
        elif not hub.routes.known:
            exchange.refuse(errors.STARTING, "This router has no routes yet; ask again.", retry_after_s=1)
            return
        else:
            exchange.refuse(
                errors.RESPONSE_NOT_FOUND, f"Response with id '{wanted.decode('latin-1')}' not found."
            )
            return
    exchange.model = holder.row.model
    exchange.send(holder, exchange.started_ns)


def next_to_ask(exchange: "Exchange") -> "EngineEndpoint | None":
    """Of those that are asked in turn. Who has left the table since then has no claim to a column of the
    slots any more, and who drains gets nothing new."""
    while exchange.asking:
        other = exchange.asking.pop()
        if not other.leaving:
            return other
    return None


def ask_next(exchange: "Exchange") -> bool:
    """Whether another replica is asked instead of the one that does not have it."""
    endpoint = exchange.endpoint
    other = next_to_ask(exchange)
    if other is None or endpoint is None:
        return False
    now_ns = monotonic_ns()
    endpoint.ended(exchange, 404)
    endpoint.release(now_ns, exchange)
    exchange.endpoint = exchange.upstream = None
    exchange.model = other.row.model
    exchange.send(other, now_ns)
    return True


def continued_at(exchange: "Exchange", target: "LiveTarget") -> "EngineEndpoint | None":
    """Where the response is held that a new one continues; None: no such, or nobody knows."""
    previous = continued_response(exchange.body)
    if previous is None:
        return None
    return exchange.hub.pins.holder(previous.encode("utf-8", "replace"), target.endpoints)


def _serves(endpoint: "EngineEndpoint", key: KeyRow) -> bool:
    row = endpoint.row
    return any(may_use(key, model, model) for model in (row.model, *row.also_models))


def note_response(exchange: "Exchange", payload: bytes) -> None:
    """Remember who holds the response that `payload` begins."""
    found = id_in(payload)
    if found is not None and not isinstance(exchange.endpoint, ColdEndpoint | None):
        exchange.hub.pins.remember(found, exchange.endpoint)
