"""The routes in force: who said them, how old they are, and what all workers have made of them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from enum import Enum

from llmgw_kit.clock import Clock
from llmgw_router.core.learned import Routes
from llmgw_router.core.marks import Marks
from llmgw_router.ports import Acknowledgement, Workers
from llmgw_router.relay.ipc import TableUpdate


class Source(Enum):
    #: Configured endpoints; nothing changes them.
    STATIC = "static"
    #: From disk, each endpoint probed; no controller was heard since the start.
    KEPT = "kept"
    CONTROLLER = "controller"


class Board:
    """One writer publishes; workers get every table whole, and everybody else reads."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        #: In force now; empty until something was published.
        self.routes = Routes()
        #: None: nothing was published yet.
        self.source: Source | None = None
        #: Of the last snapshot or change a controller sent; None: none was heard.
        self._heard_s: float | None = None
        #: Newest push, and whether every worker picks from it.
        self._pushed: TableUpdate | None = None
        self._applied = False
        self._acknowledged: Acknowledgement | None = None
        self._drained: frozenset[str] = frozenset()
        #: An operator's own, on top of every table.
        self.marks = Marks()
        #: Replaced at every change, so that any number of waiters sees each of them.
        self._news = asyncio.Event()

    def publish(self, routes: Routes, source: Source) -> None:
        """Put routes in force. Workers get them now, unless all that changed is what they do not use: a
        leader repeats itself every few seconds only to show how old its numbers are."""
        self.routes = routes
        self.source = source
        if source is Source.CONTROLLER:
            self._heard_s = self._clock.monotonic_s()
        self._push()

    def mark(self, marks: Marks) -> None:
        """Put an operator's marks in force, over this table and every later one."""
        self.marks = marks
        self._push()

    def _push(self) -> None:
        routes, marks = self.routes, self.marks
        rows = tuple(routes.endpoints.values())
        if marks:
            rows = tuple(marks.on(row) for row in rows)
        self._drained &= {row.endpoint_id for row in rows if row.draining}
        update = TableUpdate(
            endpoints=rows,
            models=tuple(entry.row for entry in routes.models.values()),
            term=routes.term,
            version=routes.version,
        )
        before = self._pushed
        if before is None or (before.endpoints, before.models) != (update.endpoints, update.models):
            self._pushed, self._applied = update, False
            self._workers.push_table(update)
        self._acknowledge()
        self._notify()

    def controller_heard(self) -> bool:
        """Since this process started."""
        return self._heard_s is not None

    @property
    def heard_age_s(self) -> float | None:
        """Seconds since a controller last said something of routes; None: not in this process."""
        return None if self._heard_s is None else self._clock.monotonic_s() - self._heard_s

    @property
    def replica_ids(self) -> frozenset[str]:
        return frozenset(row.replica_id for row in self.routes.endpoints.values())

    async def published(self) -> AsyncIterator[Routes]:
        """The routes in force, at once and whenever they change; those in between may be left out."""
        told: Routes | None = None
        while True:
            news = self._news
            if self.source is None or self.routes is told:
                await news.wait()
                continue
            told = self.routes
            yield told

    # --- what the workers made of it; called by the pool

    def applied(self) -> None:
        """Every worker picks from the newest push."""
        self._applied = True
        self._acknowledge()
        self._notify()

    def drained(self, endpoint_ids: Iterable[str]) -> None:
        """Nothing of this router runs at these draining endpoints any more."""
        self._drained |= frozenset(endpoint_ids)
        self._acknowledge()
        self._notify()

    def _acknowledge(self) -> None:
        term, version = self.routes.term, self.routes.version
        if self._applied and self.source is Source.CONTROLLER and term is not None and version is not None:
            # Only what the controller has asked to drain: what an operator put aside here is not its news.
            rows = self.routes.endpoints
            asked = (key for key in self._drained if key in rows and rows[key].draining)
            drained = frozenset(asked) if self.marks else self._drained
            self._acknowledged = Acknowledgement(term=term, version=version, drained=drained)

    async def acknowledgements(self) -> AsyncIterator[Acknowledgement]:
        """The newest state, at once and whenever it changes; states in between may be left out."""
        told: Acknowledgement | None = None
        while True:
            news = self._news
            if self._acknowledged is None or self._acknowledged == told:
                await news.wait()
                continue
            told = self._acknowledged
            yield told

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
