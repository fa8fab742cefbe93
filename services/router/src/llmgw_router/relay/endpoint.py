"""What a worker holds per endpoint: its connections, its load, its recent failures.

One object per endpoint id for as long as anything refers to it. The load is written to the
worker's own row of the slots in the same breath as the pick and the release; there is no other
place where a request is noted.
"""

import asyncio
from typing import TYPE_CHECKING, Final
from zlib import crc32

from llmgw_router.core.choosing.speed import Speed
from llmgw_router.core.choosing.standing import Reason, Standing
from llmgw_router.core.table import EndpointRow
from llmgw_router.relay.slots import BROKEN, FAILED, IN_FLIGHT, LAST_TOUCH, PICKS, Slots
from llmgw_router.relay.tls import Contexts

if TYPE_CHECKING:
    from collections.abc import Callable

    from llmgw_router.relay.upstream import UpstreamConnection
    from llmgw_router.relay.warden import Warden

#: Statuses that are an engine's own failure. 429 and 503 say that it is busy; 501 that it lacks something.
FAULTS: Final = frozenset({500, 502, 504})


class EngineEndpoint(Standing):
    """A ready replica, as the hot path uses it."""

    __slots__ = (
        "_broken",
        "_failed",
        "_in_flight_cells",
        "_others",
        "_picks",
        "_prefixes",
        "_touched",
        "host",
        "idle",
        "in_flight",
        "leaving",
        "models",
        "name",
        "on_drained",
        "port",
        "row",
        "salt",
        "slot",
        "speed",
        "tier",
        "warden",
        "where",
    )

    def __init__(
        self,
        row: EndpointRow,
        slots: Slots,
        worker: int,
        warden: "Warden",
        on_drained: "Callable[[EngineEndpoint], None]",
    ) -> None:
        super().__init__()
        assert row.slot is not None
        self.slot = row.slot
        self.in_flight = 0
        self.warden = warden
        self.speed = Speed()
        #: Where prompts find their place: the same in every worker and router.
        self.salt = crc32(row.endpoint_id.encode("utf-8", "surrogatepass"))
        #: Draining, or gone from the table: nothing new comes here.
        self.leaving = False
        #: Of connections: one made to another `where` is of no use. The same object while it is the same.
        self.where: tuple[object, ...] | None = None
        self.on_drained = on_drained
        #: Most recently used last: the ones at the front may be closed for want of use.
        self.idle: list[UpstreamConnection] = []
        self._in_flight_cells = slots.column_of(worker, IN_FLIGHT)
        self._picks = slots.column_of(worker, PICKS)
        self._touched = slots.column_of(worker, LAST_TOUCH)
        self._failed = slots.column_of(worker, FAILED)
        self._broken = slots.column_of(worker, BROKEN)
        self._others = [slots.column_of(w, IN_FLIGHT) for w in range(slots.workers) if w != worker]
        # The cell is at zero: the supervisor has settled what a predecessor in this row left (Slots.bury)
        # and cleared a column that was another's, and of this one nothing runs here (LiveRoutes._gone).
        self.update(row)

    def update(self, row: EndpointRow) -> None:
        """Take over a newer row of the same endpoint. Connections to a changed address are closed, those
        that are in use when their exchange is over."""
        where = (row.host, row.port, row.tls, row.tls_ca, row.tls_name)
        if where != self.where:
            self.where = where
            self.close_idle()
        self.row = row
        self.host = row.host
        self.port = row.port
        self.name = row.endpoint_id
        self.models = (row.model, *row.also_models)
        self.tier = row.tier
        self.weigh(row.weight)
        self.leaving = row.draining
        self._prefixes: dict[bytes, bytes] = {}

    def close_idle(self) -> None:
        """Drop every pooled connection."""
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.transport.abort()

    def outstanding(self) -> int:
        """Requests running there, over all workers."""
        running = self.in_flight
        for cells in self._others:
            running += cells[self.slot]
        return running

    def take(self, now_ns: int) -> None:
        """A request is on its way there. `now_ns` is CLOCK_MONOTONIC, read for this pick."""
        self.in_flight += 1
        slot = self.slot
        self._in_flight_cells[slot] = self.in_flight
        self._picks[slot] += 1
        self._touched[slot] = now_ns

    def release(self, now_ns: int, by: object) -> None:
        """It is over for `by`, in whatever way."""
        if self.trial is not None and self.trial is by:
            # It tried this endpoint, and ends without a word about it (HO25).
            self.gave_up(self.warden.now)
        self.in_flight -= 1
        slot = self.slot
        self._in_flight_cells[slot] = self.in_flight
        self._touched[slot] = now_ns
        if self.leaving and not self.in_flight:
            self.on_drained(self)

    def began(self, by: object, status: int, waited_ns: int | None) -> None:
        """The first byte of an answer's body is there. `waited_ns`, of event streams: since it was asked."""
        if self.trial is by and status not in FAULTS:
            self.warden.passed(self)
        if waited_ns is not None:
            self.speed.began(waited_ns / 1e9)

    def ended(self, by: object, status: int) -> None:
        """A whole answer came. Any status but a fault of its own says that it is alive."""
        if status in FAULTS:
            self.warden.failed(self, by, Reason.FAILING)
            return
        if self.trial is by:
            self.warden.passed(self)
        warden = self.warden
        self.succeeded(warden.now, warden.rules)

    def unanswered(self, by: object, reason: Reason, *, decisive: bool = False) -> None:
        """No answer came that a client could have had."""
        self._failed[self.slot] += 1
        self.warden.failed(self, by, reason, decisive=decisive)

    def broke(self, by: object) -> None:
        """An answer had begun and was cut."""
        self._broken[self.slot] += 1
        self.warden.failed(self, by, Reason.FAILING)

    def busy(self, by: object, retry_after_s: float | None) -> None:
        """It says that it has no room (429, 503), and maybe for how long. It is alive: nobody's failure."""
        if self.trial is by:
            self.warden.passed(self)
        warden = self.warden
        told = retry_after_s is not None
        seconds = retry_after_s if retry_after_s is not None else warden.rules.cool_down_first_s
        self.rest(warden.now, min(seconds, warden.rules.cool_down_most_s), told=told)

    def head_prefix(self, path: bytes) -> bytes:
        """Request line and what we say ourselves, the same for every POST to one path."""
        prefix = self._prefixes.get(path)
        if prefix is None:
            prefix = self.request_lines(b"POST", path)
            if len(self._prefixes) < 256:
                # Bounded: a query string makes a new path, and clients choose those.
                self._prefixes[path] = prefix
        return prefix

    def request_lines(self, method: bytes, path: bytes) -> bytes:
        """What we say ourselves to this endpoint, and with it our credential."""
        row = self.row
        host = f"[{row.host}]" if ":" in row.host else row.host
        lines = [
            b"%b %b%b HTTP/1.1" % (method, row.base_path.encode(), path),
            f"host: {host}:{row.port}".encode(),
            b"accept-encoding: identity",
        ]
        if row.credential is not None:
            lines.append(b"authorization: Bearer " + row.credential.encode())
        return b"\r\n".join(lines) + b"\r\n"

    async def connect(
        self, loop: asyncio.AbstractEventLoop, make: "Callable[[], UpstreamConnection]", contexts: Contexts
    ) -> "UpstreamConnection":
        """Open one connection. Raises OSError."""
        row = self.row
        context = contexts.of(row)
        _, connection = await loop.create_connection(
            make,
            self.host,
            self.port,
            ssl=context,
            server_hostname=None if context is None else row.tls_name or row.host,
        )
        return connection


class ColdEndpoint:
    """The supervisor's cold application on its unix socket: the same connections, no load, no blame."""

    __slots__ = ("idle", "leaving", "name", "path", "where")

    #: It is never left alone.
    ejected = False

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = "cold"
        self.idle: list[UpstreamConnection] = []
        self.leaving = False
        self.where = None

    def take(self, now_ns: int) -> None:
        """Nothing is noted: asking for a page wakes no replica."""

    def release(self, now_ns: int, by: object) -> None:
        """See take."""

    def began(self, by: object, status: int, waited_ns: int | None) -> None:
        """See take."""

    def ended(self, by: object, status: int) -> None:
        """See take."""

    def unanswered(self, by: object, reason: Reason, *, decisive: bool = False) -> None:
        """See take."""

    def broke(self, by: object) -> None:
        """See take."""

    async def connect(
        self, loop: asyncio.AbstractEventLoop, make: "Callable[[], UpstreamConnection]", contexts: Contexts
    ) -> "UpstreamConnection":
        """Open one connection. Raises OSError."""
        _, connection = await loop.create_unix_connection(make, self.path)
        return connection


Endpoint = EngineEndpoint | ColdEndpoint
