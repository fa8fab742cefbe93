"""What runs in this worker at one moment, for somebody who asks."""

from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from llmgw_router.relay import ipc
from llmgw_router.relay.phase import ARRIVING, CONNECTING, HELD, OVER, QUEUED, RELAYING, WAITING

if TYPE_CHECKING:
    from llmgw_router.relay.hub import Hub

#: Rows of one answer; whoever has more running reads the metrics.
MOST_ROWS = 10_000

_WORDS: Final = {
    ARRIVING: "arriving",
    HELD: "held",
    CONNECTING: "connecting",
    WAITING: "waiting",
    RELAYING: "relaying",
    OVER: "over",
    QUEUED: "queued",
}


def running(hub: "Hub", ask: int) -> ipc.Running:
    """Every exchange of this worker, in no order; `left_out` counts those above MOST_ROWS."""
    now_ns = monotonic_ns()
    rows: list[ipc.RunningRow] = []
    left_out = 0
    for client in hub.connections:
        exchange = client.current
        if exchange is None:
            continue
        if len(rows) >= MOST_ROWS:
            left_out += 1
            continue
        endpoint = exchange.endpoint
        key = exchange.key
        rows.append(
            ipc.RunningRow(
                request_id=(exchange.request_id or b"").decode("latin-1"),
                method=exchange.method.decode("latin-1"),
                path=exchange.path.decode("latin-1"),
                model=exchange.model,
                endpoint_id=None if endpoint is None else endpoint.name,
                phase=_WORDS[exchange.phase],
                age_s=round((now_ns - exchange.started_ns) / 1e9, 3) if exchange.started_ns else 0.0,
                bytes_out=exchange.bytes_out,
                chunks=exchange.chunks,
                key_id=None if key is None else key.key_id,
                profile=exchange.profile.name,
            )
        )
    return ipc.Running(ask=ask, worker=hub.worker, rows=tuple(rows), left_out=left_out)
