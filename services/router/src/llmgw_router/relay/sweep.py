"""All deadlines of one worker, looked at once per sweep: no timer is ever made for a request."""

from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.first_event import WAIT_S
from llmgw_router.relay.heartbeat import beat
from llmgw_router.relay.phase import CONNECTING, HELD, QUEUED, RELAYING, WAITING
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.exchange import Exchange
    from llmgw_router.relay.hub import Hub

_STALLED = COUNTER[f"refused_{errors.WRITE_STALL.label}"]


def sweep(hub: "Hub") -> None:
    """One pass over every client connection and every pooled upstream connection."""
    # What began since the last sweep is noted as that old: by the clock of then, no deadline is early. And a
    # worker that stood still does not hold against engines what it has not read yet.
    past = hub.now
    hub.tick()
    now = hub.now
    hub.each_connection("looking at a connection", lambda client: _look(client, past))
    for endpoint in hub.endpoints():
        idle = endpoint.idle
        # Least recently used first.
        while idle and now - idle[0].idle_since > hub.limits.upstream_idle_s:
            idle.pop(0).transport.close()
    hub.bodies.count()
    hub.warden.sweep()
    hub.choosing.flush()
    hub.room.report()
    hub.flush()


def _look(client: "ClientConnection", past: float) -> None:
    hub = client.hub
    exchange = client.current
    if exchange is None:
        _waiting_for_client(client, past)
    elif client.paused and _stalled(client, hub.now):
        exchange.code = errors.WRITE_STALL.label
        hub.counters[_STALLED] += 1
        # Nobody reads: there is no way to say so. The loss of the connection releases the rest.
        client.transport.abort()
    else:
        _look_at(exchange, past)


def _waiting_for_client(client: "ClientConnection", now: float) -> None:
    """No exchange runs: the next step is the client's."""
    limits = client.hub.limits
    if client.transport.get_write_buffer_size():
        # Still taking its last answer; where we close, the loop does so when that has left.
        if _stalled(client, client.hub.now):
            client.transport.abort()
    elif client.closing is not None:
        if now - client.closing > limits.linger_s:
            client.transport.abort()
    elif client.head_begun:
        if now - client.began > limits.request_head_s:
            client.refuse_next(errors.REQUEST_TIMEOUT, "The request head took too long.")
            client.pump()
    elif client.parsing is not None:
        if now - client.touched > limits.request_body_idle_s:
            client.refuse_next(errors.REQUEST_TIMEOUT, "The request body stopped arriving.")
            client.pump()
        elif (total_s := client.hub.default_profile.total_s) is not None and now - client.began > total_s:
            # Byte by byte it is never idle. Which profile it is for is not known before it is here.
            client.refuse_next(
                errors.REQUEST_TIMEOUT, f"The request body was not here whole within {total_s:g} s."
            )
            client.pump()
    elif not client.served:
        if now - client.began > limits.request_head_s:
            client.transport.abort()
    elif now - client.touched > limits.keepalive_s:
        client.transport.abort()


def _stalled(client: "ClientConnection", now: float) -> bool:
    """Whether the client has taken nothing for too long of what waits for it."""
    waiting = client.transport.get_write_buffer_size()
    if waiting < client.stalled_bytes or not client.stalled_bytes:
        # Slow, but taking something.
        client.stalled_since = now
    client.stalled_bytes = waiting
    exchange = client.current
    profile = client.hub.default_profile if exchange is None else exchange.profile
    limit = profile.write_stall_s
    return limit is not None and now - client.stalled_since > limit


def _look_at(exchange: "Exchange", now: float) -> None:
    profile = exchange.profile
    phase = exchange.phase
    if exchange.hub.now >= exchange.beat_at and phase != RELAYING and not exchange.head_sent:
        exchange.hub.guard(exchange, beat, exchange, exchange.hub.now)
    if profile.total_s is not None and now - exchange.started > profile.total_s:
        # Over everything: waiting, asking again, answering.
        _out_of_time(exchange, errors.TIMEOUT_TOTAL, "total_s", profile.total_s, "It was not over")
    elif phase == HELD:
        if now >= exchange.hold_until:
            exchange.hub.guard(exchange, exchange.hub.room.expire, exchange)
    elif phase == QUEUED:
        if now >= exchange.hold_until:
            exchange.hub.guard(exchange, exchange.hub.queue.expire, exchange)
    elif phase == CONNECTING:
        if now - exchange.since > profile.connect_s:
            _out_of_time(exchange, errors.TIMEOUT_CONNECT, "connect_s", profile.connect_s, "No connection")
    elif phase == WAITING:
        if exchange.opening and now - exchange.touched > WAIT_S:
            exchange.hub.guard(exchange, exchange.open_anyway)
            return
        if exchange.dialect is None:
            _look_at_page(exchange, now)
            return
        limit = profile.first_byte_s
        if limit is not None and now - exchange.since > limit:
            _out_of_time(
                exchange, errors.TIMEOUT_FIRST_BYTE, "first_byte_s", limit, "The engine sent no first byte"
            )
    elif phase == RELAYING and exchange.dialect is not None and not exchange.client.paused:
        limit = profile.idle_s
        if limit is not None and now - exchange.touched > limit:
            _out_of_time(exchange, errors.STREAM_IDLE, "idle_s", limit, "The engine sent nothing more")


def _look_at_page(exchange: "Exchange", now: float) -> None:
    """Of what is no inference no profile says how long it may take."""
    limit = exchange.hub.limits.cold_first_byte_s
    if now - exchange.since > limit:
        exchange.limit = errors.limit("cold_first_byte_s", limit)
        exchange.hub.guard(
            exchange,
            exchange.stop_upstream,
            errors.TIMEOUT_FIRST_BYTE,
            f"No first byte came within {limit:g} s (cold_first_byte_s).",
        )


def _out_of_time(exchange: "Exchange", kind: errors.Kind, name: str, limit: float, what: str) -> None:
    """The one limit that fired is named, and the profile that sets it (HO13)."""
    profile = exchange.profile.name
    exchange.limit = errors.limit(name, limit, profile)
    exchange.hub.guard(
        exchange,
        exchange.stop_upstream,
        kind,
        f"{what} within {limit:g} s ({name} of the profile `{profile}`).",
    )
