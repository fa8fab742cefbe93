"""The route table of one term in versions, for all routers that watch it, and what each has acknowledged."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from llmgw.v1 import routing_pb2 as pb
from llmgw_controller import wire_routing
from llmgw_controller.core.routes import RouteDelta, RouteTable, diff
from llmgw_controller.wire_rows import Untold
from llmgw_kit.errors import Conflict
from llmgw_kit.ids import LeaseTerm, RouterId

#: Versions kept as deltas; who is further behind gets the whole table.
DELTAS_KEPT = 64
#: A table that does not change is said again so often, so that a router knows its numbers' age.
HEARTBEAT_S = 10.0


@dataclass(frozen=True)
class Acknowledged:
    """A router's newest word on our table."""

    incarnation: str
    version: int
    drained: frozenset[str]


class Watcher:
    """One router's open stream."""

    def __init__(self, router_id: RouterId, incarnation: str) -> None:
        self.router_id = router_id
        self.incarnation = incarnation
        self.replaced = False


class RoutesBoard:
    """One writer (the pass), many watchers, one loop."""

    def __init__(self, term: LeaseTerm) -> None:
        self._term = term
        self._table: RouteTable | None = None
        self._version = 0
        self._published_at = 0.0
        self._deltas: deque[tuple[int, pb.RouteDelta]] = deque(maxlen=DELTAS_KEPT)
        #: When each of the newest versions was made, term clock.
        self._made: deque[tuple[int, float]] = deque(maxlen=DELTAS_KEPT)
        self._moved = asyncio.Event()
        self._ended = False
        self._watchers: dict[RouterId, Watcher] = {}
        self._acknowledged: dict[RouterId, Acknowledged] = {}
        #: Rows of the newest table that no router can be told.
        self.untold: tuple[Untold, ...] = ()
        #: Draining endpoint -> the version that first had its mark.
        self._marked: dict[str, int] = {}

    @property
    def version(self) -> int:
        """Of the newest table; 0 before the first."""
        return self._version

    @property
    def table(self) -> RouteTable | None:
        """The newest table; None before the first pass of the term."""
        return self._table

    def publish(self, table: RouteTable, now: float) -> None:
        """Make a version of it if it differs, or if nothing was said for a while. What no message carries is
        left out, and stands in `untold`."""
        table, self.untold = wire_routing.tellable(table, self._table)
        if self._table is None:
            self._take(table, now, None)
            return
        change = diff(self._table, table)
        if change is not None:
            self._take(table, now, wire_routing.delta(change))
        elif now - self._published_at >= HEARTBEAT_S:
            self._take(table, now, wire_routing.delta(RouteDelta((), (), (), (), table.fleet)))

    def _take(self, table: RouteTable, now: float, delta: pb.RouteDelta | None) -> None:
        self._table, self._published_at = table, now
        self._version += 1
        self._made.append((self._version, now))
        # A mark that went and came back is a new one: what a router said of the first says nothing of it.
        self._marked = {
            row.endpoint_id: self._marked.get(row.endpoint_id, self._version)
            for row in table.endpoints.values()
            if row.draining
        }
        if delta is not None:
            self._deltas.append((self._version, delta))
        self._wake()

    def _wake(self) -> None:
        woken, self._moved = self._moved, asyncio.Event()
        woken.set()

    def watch(self, router_id: RouterId, incarnation: str) -> Watcher:
        """Open a stream; an older one of the same router ends."""
        older = self._watchers.get(router_id)
        if older is not None:
            older.replaced = True
        watcher = Watcher(router_id, incarnation)
        self._watchers[router_id] = watcher
        self._wake()
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """The stream is gone."""
        if self._watchers.get(watcher.router_id) is watcher:
            del self._watchers[watcher.router_id]

    @property
    def watching(self) -> frozenset[RouterId]:
        """Routers with an open stream."""
        return frozenset(self._watchers)

    async def messages(self, watcher: Watcher) -> AsyncIterator[pb.WatchRoutesResponse]:
        """A snapshot, then every later version in order, until the term ends.

        Raises Conflict when another router took over the id."""
        sent = 0
        while not self._ended and not watcher.replaced:
            if sent == self._version:
                await self._moved.wait()
                continue
            for message in self._since(sent):
                yield message
                sent = message.version
        if watcher.replaced:
            raise Conflict(
                f"router {watcher.router_id} opened another stream", code="replaced",
                next_steps=["give each router its own router_id"],
            )  # fmt: skip

    def _since(self, sent: int) -> list[pb.WatchRoutesResponse]:
        assert self._table is not None
        missing = [(version, delta) for version, delta in self._deltas if version > sent]
        if sent > 0 and len(missing) == self._version - sent:
            return [
                pb.WatchRoutesResponse(term=self._term, version=version, delta=delta)
                for version, delta in missing
            ]
        whole = wire_routing.snapshot(self._table)
        return [pb.WatchRoutesResponse(term=self._term, version=self._version, snapshot=whole)]

    def end(self) -> None:
        """The term is over: every stream ends."""
        self._ended = True
        self._wake()

    def acknowledge(self, router_id: RouterId, word: Acknowledged) -> bool:
        """Note a router's newest word; whether it says anything new of drains."""
        before = self._acknowledged.get(router_id)
        self._acknowledged[router_id] = word
        # The same word of a newer version may be of another mark.
        same = before is not None and (before.drained, before.incarnation) == (word.drained, word.incarnation)
        return before is None or not same or (bool(word.drained) and before.version != word.version)

    def applied(self, router_id: RouterId, incarnation: str) -> int | None:
        """The version that all workers of this router have applied; None: it has not said so."""
        word = self._acknowledged.get(router_id)
        return word.version if word is not None and word.incarnation == incarnation else None

    def behind_since(self, applied: int | None) -> float | None:
        """When the first version was made that this one lacks; None: it lacks none. Of what is older than is
        remembered, the oldest known."""
        missing = [at for version, at in self._made if version > (applied or 0)]
        return min(missing, default=None)

    def forget(self, router_id: RouterId) -> None:
        """It said goodbye, or an operator gave it up."""
        self._acknowledged.pop(router_id, None)

    def drained(self, members: Iterable[tuple[RouterId, str]]) -> frozenset[str]:
        """Draining endpoints that every member, in its present incarnation, has seen through.

        Without members nobody sends anything, so all of them are."""
        if self._table is None:
            return frozenset()
        found = frozenset(self._marked)
        for router_id, incarnation in members:
            word = self._acknowledged.get(router_id)
            if word is None or word.incarnation != incarnation:
                return frozenset()
            # Every endpoint of one version or none: a table is applied whole.
            found &= {one for one in word.drained if self._marked.get(one, 0) <= word.version}
        return found
