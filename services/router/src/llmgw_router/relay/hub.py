"""What all connections of one worker share: limits, table, endpoints, counters, the coarse clock.

`now` is the loop's clock as of the last sweep. Deadlines are compared with it and nothing on the
data path asks for the time on their behalf; they are exact to one sweep.
"""

import asyncio
import logging
import os
import random
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, ParamSpec

from llmgw_router.core import errors
from llmgw_router.core.table import EndpointRow, ModelRow, build
from llmgw_router.relay import ipc
from llmgw_router.relay.endpoint import ColdEndpoint, EngineEndpoint
from llmgw_router.relay.room import WaitingRoom
from llmgw_router.relay.slots import (
    COUNTER,
    DURATION_BASE,
    DURATION_BUCKETS_MS,
    GAUGES,
    TTFT_BASE,
    TTFT_BUCKETS_MS,
    Slots,
)

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.ending import Ending
    from llmgw_router.relay.endpoint import Endpoint
    from llmgw_router.relay.exchange import Exchange

_ACCEPTED = COUNTER["connections_accepted"]
_OPEN = COUNTER["connections_open"]
_RUNNING = COUNTER["requests_running"]
_CLASS = {
    2: COUNTER["answers_2xx"],
    3: COUNTER["answers_3xx"],
    4: COUNTER["answers_4xx"],
    5: COUNTER["answers_5xx"],
}
_GONE = COUNTER["client_gone"]
_BYTES_IN = COUNTER["bytes_from_clients"]
_BYTES_OUT = COUNTER["bytes_to_clients"]
_TTFT_SUM = COUNTER["ttft_sum_us"]
_DURATION_SUM = COUNTER["duration_sum_us"]
_APPLIED = COUNTER["tables_applied"]
_LINES_DROPPED = COUNTER["log_lines_dropped"]

_TTFT_BUCKETS_US = [bound * 1000 for bound in TTFT_BUCKETS_MS]
_DURATION_BUCKETS_US = [bound * 1000 for bound in DURATION_BUCKETS_MS]

P = ParamSpec("P")

#: Records and lines kept for one batch; more than this in one sweep are counted, not kept.
_BATCH = 1024


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """A table's target with the endpoints themselves."""

    model: ModelRow
    endpoints: tuple[EngineEndpoint, ...]


class Hub:
    """One per worker process."""

    def __init__(
        self,
        configure: ipc.Configure,
        slots: Slots,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[ipc.Up], None],
    ) -> None:
        self.loop = loop
        self.limits = configure.limits
        self.worker = configure.worker
        self.workers = configure.workers
        self.tell = tell
        self._slots = slots
        self._shared = slots.counters_of(configure.worker)
        #: Plain integers on the data path; the sweep copies them to where the supervisor reads. They
        #: go on from what a predecessor in this row has counted.
        self.counters: list[int] = self._shared.tolist()
        for name in GAUGES:
            self.counters[COUNTER[name]] = 0
        self.cold = ColdEndpoint(configure.cold_socket)
        self.targets: dict[str, LiveTarget] = {}
        self._endpoints: dict[str, EngineEndpoint] = {}
        self._seq = 0
        self.room = WaitingRoom(self)
        self.connections: set[ClientConnection] = set()
        #: Finishing: connections end after their answer.
        self.draining = False
        #: Past the grace: requests are refused.
        self.refusing = False
        #: Called when nothing runs any more, while draining.
        self.on_quiet: Callable[[], None] | None = None
        self.chance = random.Random().random
        self._access: list[ipc.AccessRecord] | None = [] if configure.access_log else None
        self._lines: list[ipc.LogLine] = []
        # Unique among the workers and restarts of all routers: 48 random bits a process.
        self._id_prefix = b"req-" + os.urandom(6).hex().encode() + b"-"
        self._ids = 0
        self.now = 0.0
        self.date = b""
        self.tick()

    def tick(self) -> None:
        """Read the clocks; the sweep's first act."""
        self.now = self.loop.time()
        self.date = b"date: " + formatdate(usegmt=True).encode()

    def new_id(self) -> bytes:
        self._ids += 1
        return b"%b%x" % (self._id_prefix, self._ids)

    def gauge(self, name: str, change: int) -> None:
        self.counters[COUNTER[name]] += change

    # --- connections and exchanges

    def connected(self, client: "ClientConnection") -> None:
        self.connections.add(client)
        counters = self.counters
        counters[_ACCEPTED] += 1
        counters[_OPEN] += 1

    def disconnected(self, client: "ClientConnection") -> None:
        self.connections.discard(client)
        self.counters[_OPEN] -= 1
        if self.on_quiet is not None and not self.connections:
            self.on_quiet()

    def begin(self, exchange: "Exchange") -> None:
        """Route it. A bug in us is an answer too (W17), and the worker lives on."""
        self.counters[_RUNNING] += 1
        try:
            exchange.route()
        except Exception:
            self.bug(exchange)

    def guard(self, exchange: "Exchange", step: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Take one step of an exchange at the rim, where nobody above could answer for its failure."""
        try:
            step(*args, **kwargs)
        except Exception:
            self.bug(exchange)

    def log_bug(self, doing: str, error: Exception) -> None:
        """The traceback of what should not have happened, for the supervisor's log."""
        cause = error.__context__ or error
        trace = "".join(traceback.format_exception(cause, limit=12))
        self.log(logging.ERROR, f"internal error while {doing}: {trace}")

    def bug(self, exchange: "Exchange") -> None:
        """Called from an except block at the rim: log the traceback, answer 500, keep serving."""
        request_id = (exchange.request_id or b"").decode("latin-1")
        self.log(logging.ERROR, f"internal error in {request_id}: {traceback.format_exc(limit=12)}")
        if not exchange.head_sent:
            exchange.stop_upstream(errors.INTERNAL, f"Internal error of the router; request id {request_id}.")
        else:
            exchange.client.transport.abort()

    def account(self, exchange: "Ending", endpoint: "Endpoint | None", now_ns: int) -> None:
        """Count a finished exchange; a handful of integers."""
        counters = self.counters
        counters[_RUNNING] -= 1
        status = exchange.status
        if status == 499:
            counters[_GONE] += 1
        else:
            counters[_CLASS.get(status // 100, _GONE)] += 1
        counters[_BYTES_IN] += exchange.body_bytes
        counters[_BYTES_OUT] += exchange.bytes_out
        began = exchange.started_ns
        duration_us = (now_ns - began) // 1000
        first_ns = exchange.first_ns
        if exchange.dialect is not None:
            counters[_DURATION_SUM] += duration_us
            counters[DURATION_BASE + bisect_left(_DURATION_BUCKETS_US, duration_us)] += 1
            if first_ns:
                ttft_us = (first_ns - began) // 1000
                counters[_TTFT_SUM] += ttft_us
                counters[TTFT_BASE + bisect_left(_TTFT_BUCKETS_US, ttft_us)] += 1
        if self._access is not None:
            self._record(exchange, endpoint, duration_us, (first_ns - began) // 1000 if first_ns else None)

    def _record(
        self, exchange: "Ending", endpoint: "Endpoint | None", duration_us: int, ttft_us: int | None
    ) -> None:
        if self._access is None:
            return
        if len(self._access) >= _BATCH:
            self.flush()
        self._access.append(
            ipc.AccessRecord(
                at_unix_s=time.time(),
                request_id=(exchange.request_id or b"").decode("latin-1"),
                method=exchange.method.decode("latin-1"),
                path=exchange.path.decode("latin-1"),
                status=exchange.status,
                code=exchange.code,
                model=exchange.model,
                endpoint_id=None if endpoint is None else endpoint.name,
                bytes_in=exchange.body_bytes,
                bytes_out=exchange.bytes_out,
                ttft_ms=None if ttft_us is None else ttft_us / 1000,
                duration_ms=duration_us / 1000,
                retries=len(exchange.tried or ()),
            )
        )

    # --- what the supervisor says

    @property
    def routes_known(self) -> bool:
        """False until the supervisor has published routes: the pool's own first table has seq 0."""
        return self._seq > 0

    def apply(self, update: ipc.TableUpdate) -> None:
        """Swap the table. From here on no pick is made from the old one."""
        table = build(update.endpoints, update.models)
        for endpoint_id, row in table.endpoints.items():
            if row.slot is not None:
                self._upsert(endpoint_id, row)
        drained: list[str] = []
        self._seq = update.seq
        for endpoint_id in list(self._endpoints):
            endpoint = self._endpoints[endpoint_id]
            if endpoint_id not in table.endpoints:
                del self._endpoints[endpoint_id]
                endpoint.leaving = True
            if endpoint.leaving:
                endpoint.close_idle()
                if not endpoint.in_flight:
                    drained.append(endpoint_id)
        live: dict[int, LiveTarget] = {}
        targets: dict[str, LiveTarget] = {}
        for name, target in table.by_name.items():
            made = live.get(id(target))
            if made is None:
                endpoints = tuple(self._endpoints[endpoint_id] for endpoint_id in target.endpoint_ids)
                made = live[id(target)] = LiveTarget(target.model, endpoints)
            targets[name] = made
        self.targets = targets
        self.counters[_APPLIED] += 1
        self.tell(ipc.Applied(seq=update.seq, term=update.term, version=update.version))
        if drained:
            self.tell(ipc.DrainedEndpoints(seq=update.seq, endpoint_ids=tuple(drained)))
        self.room.table_changed()

    def _upsert(self, endpoint_id: str, row: EndpointRow) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            self._endpoints[endpoint_id] = EngineEndpoint(row, self._slots, self.worker, self._drained)
        elif endpoint.row != row:
            before = endpoint.row
            endpoint.update(row)
            if (before.host, before.port, before.tls) != (row.host, row.port, row.tls):
                endpoint.close_idle()

    def _drained(self, endpoint: EngineEndpoint) -> None:
        self.tell(ipc.DrainedEndpoints(seq=self._seq, endpoint_ids=(endpoint.name,)))

    # --- once per sweep

    def endpoints(self) -> "list[Endpoint]":
        return [*self._endpoints.values(), self.cold]

    def log(self, level: int, text: str) -> None:
        """A line for the supervisor's log; dropped and counted when there are too many at once."""
        if len(self._lines) < _BATCH:
            self._lines.append(ipc.LogLine(level, text))
        else:
            self.counters[_LINES_DROPPED] += 1

    def flush(self) -> None:
        """Hand over what has been collected."""
        for index, value in enumerate(self.counters):
            self._shared[index] = value
        if self._access:
            records, self._access = self._access, []
            self.tell(ipc.AccessRecords(records=tuple(records)))
        if self._lines:
            lines, self._lines = self._lines, []
            self.tell(ipc.LogLines(lines=tuple(lines)))
