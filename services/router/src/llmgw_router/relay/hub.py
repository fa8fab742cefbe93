"""What all connections of one worker share: limits, table, endpoints, counters, the coarse clock.

`now` is the loop's clock as of the last sweep. Deadlines are compared with it and nothing on the
data path asks for the time on their behalf; they are exact to one sweep.
"""

import asyncio
import logging
import os
import random
import traceback
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, ParamSpec

from llmgw_router.core import errors
from llmgw_router.core.config import WorkerConfig
from llmgw_router.relay import ipc
from llmgw_router.relay.access import Access
from llmgw_router.relay.accounting import Accounts
from llmgw_router.relay.bodies import Bodies
from llmgw_router.relay.choosing import Chooser
from llmgw_router.relay.endpoint import ColdEndpoint
from llmgw_router.relay.live_routes import LiveRoutes
from llmgw_router.relay.metering import Metering
from llmgw_router.relay.pins import Pins
from llmgw_router.relay.queueing import Queueing
from llmgw_router.relay.room import WaitingRoom
from llmgw_router.relay.routing import route
from llmgw_router.relay.slots import COUNTER, GAUGES, Slots
from llmgw_router.relay.tls import Contexts
from llmgw_router.relay.tracing import tracer_of
from llmgw_router.relay.warden import Warden

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.endpoint import Endpoint
    from llmgw_router.relay.exchange import Exchange

_ACCEPTED = COUNTER["connections_accepted"]
_TOO_MANY = COUNTER["connections_refused"]
_OPEN = COUNTER["connections_open"]
_RUNNING = COUNTER["requests_running"]
_LINES_DROPPED = COUNTER["log_lines_dropped"]

P = ParamSpec("P")

#: Lines kept for one batch; more than this in one sweep are counted, not kept.
_BATCH = 1024


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
        self.worker = configure.worker
        self.workers = configure.workers
        self.tell = tell
        self._shared = slots.counters_of(configure.worker)
        #: Plain integers on the data path; the sweep copies them to where the supervisor reads. They
        #: go on from what a predecessor in this row has counted.
        self.counters: list[int] = self._shared.tolist()
        for name in GAUGES:
            self.counters[COUNTER[name]] = 0
        self.cold = ColdEndpoint(configure.cold_socket)
        self.room = WaitingRoom(self)
        self.queue = Queueing(self, slots)
        self.connections: set[ClientConnection] = set()
        self.bodies = Bodies(self)
        #: Finishing: connections end after their answer.
        self.draining = False
        #: Past the grace: requests are refused.
        self.refusing = False
        #: Called when nothing runs any more, while draining.
        self.on_quiet: Callable[[], None] | None = None
        self.chance = random.Random().random
        self._lines: list[ipc.LogLine] = []
        # Unique among the workers and restarts of all routers: 48 random bits a process.
        self._id_prefix = b"req-" + os.urandom(6).hex().encode() + b"-"
        self._ids = 0
        self.now = 0.0
        self.date = b""
        self.accounts = Accounts(self.counters, tell)
        self.metering = Metering(self, configure.usage_folder)
        self.access = Access(required=configure.config.keys_required)
        self.warden = Warden(self, configure.config.choosing)
        self.choosing = Chooser(self, configure.config.choosing)
        self.routes = LiveRoutes(self, slots)
        self.pins = Pins(slots, configure.worker)
        self.reconfigure(configure.config)
        self.tick()

    def tick(self) -> None:
        """Read the clocks; the sweep's first act."""
        self.now = self.loop.time()
        self.date = b"date: " + formatdate(usegmt=True).encode()
        self.metering.tick()

    def new_id(self) -> bytes:
        self._ids += 1
        return b"%b%x" % (self._id_prefix, self._ids)

    def gauge(self, name: str, change: int) -> None:
        self.counters[COUNTER[name]] += change

    # --- connections and exchanges

    def connected(self, client: "ClientConnection") -> None:
        counters = self.counters
        counters[_ACCEPTED] += 1
        counters[_OPEN] += 1
        self.connections.add(client)
        if len(self.connections) > self.limits.max_connections:
            counters[_TOO_MANY] += 1
            client.cut(reset=False)

    def disconnected(self, client: "ClientConnection") -> None:
        self.connections.discard(client)
        self.counters[_OPEN] -= 1
        if self.on_quiet is not None and not self.connections:
            self.on_quiet()

    def begin(self, exchange: "Exchange") -> None:
        """Route it. A bug in us is an answer too (W17), and the worker lives on."""
        self.counters[_RUNNING] += 1
        try:
            route(exchange)
        except Exception:
            self.bug(exchange)

    def guard(self, exchange: "Exchange", step: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Take one step of an exchange at the rim, where nobody above could answer for its failure."""
        try:
            step(*args, **kwargs)
        except Exception:
            self.bug(exchange)

    def each_connection(self, doing: str, step: "Callable[[ClientConnection], None]") -> None:
        """Take one step of every connection. A bug costs the one that it is met at, not those behind it."""
        for client in tuple(self.connections):
            try:
                step(client)
            except Exception as error:
                self.log_bug(doing, error)
                # Its loss gives back what it holds.
                client.transport.abort()

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

    # --- what the supervisor says

    def reconfigure(self, config: WorkerConfig) -> None:
        """Swap the configuration. What runs keeps the profile it began with."""
        self.config = config
        self.limits = config.limits
        self.bodies.reconfigure(config)
        self.contexts = Contexts(config.upstream_tls)
        self.default_profile = config.profiles[config.default_profile]
        self.queue.reconfigure(config.admission)
        self.accounts.reconfigure(config.telemetry)
        self.metering.reconfigure(config.telemetry)
        self.warden.rules = config.choosing
        self.choosing.reconfigure(config.choosing)
        self.tracer = tracer_of(config.telemetry)

    # --- once per sweep

    def endpoints(self) -> "list[Endpoint]":
        return [*self.routes.endpoints(), self.cold]

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
        self.accounts.flush()
        if self._lines:
            lines, self._lines = self._lines, []
            self.tell(ipc.LogLines(lines=tuple(lines)))
