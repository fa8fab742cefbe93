"""The routes in force: who said them, how old they are, and what all workers have made of them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from enum import Enum

from llmgw_kit.clock import Clock
from llmgw_router.core.learned import Routes
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
        self._acknowledged: Acknowledgement | None = None
        self._drained: frozenset[str] = frozenset()
        #: Replaced at every change, so that any number of waiters sees each of them.
        self._news = asyncio.Event()

    def publish(self, routes: Routes, source: Source) -> None:
        """Put routes in force: the workers get them now."""
        self.routes = routes
        self.source = source
        if source is Source.CONTROLLER:
            self._heard_s = self._clock.monotonic_s()
        draining = {key for key, row in routes.endpoints.items() if row.draining}
        self._drained &= draining
        self._workers.push_table(
            TableUpdate(
                endpoints=tuple(routes.endpoints[key] for key in sorted(routes.endpoints)),
                models=tuple(routes.models[key].row for key in sorted(routes.models)),
                term=routes.term,
                version=routes.version,
            )
        )
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

    def applied(self, update: TableUpdate) -> None:
        """Every worker picks from `update`, or a later one."""
        if update.term is None or update.version is None or self.source is not Source.CONTROLLER:
            return
        self._acknowledged = Acknowledgement(term=update.term, version=update.version, drained=self._drained)
        self._notify()

    def drained(self, endpoint_ids: Iterable[str]) -> None:
        """Nothing of this router runs at these draining endpoints any more."""
        self._drained |= frozenset(endpoint_ids)
        if self._acknowledged is not None:
            self._acknowledged = Acknowledgement(
                term=self._acknowledged.term, version=self._acknowledged.version, drained=self._drained
            )
            self._notify()

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
