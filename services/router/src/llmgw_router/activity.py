"""The activity tick: one map to Redis, whatever the traffic; Redis away changes nothing for clients."""

import logging

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_router.board import Board
from llmgw_router.core.activity import Memory, Use, observe, report, told
from llmgw_router.ports import ActivityStore, Workers

log = logging.getLogger(__name__)


class ActivityLoop:
    """Remembers what was told, and tells what is new."""

    def __init__(
        self, store: ActivityStore, workers: Workers, board: Board, clock: Clock, *, tick_s: float
    ) -> None:
        self._store = store
        self._workers = workers
        self._board = board
        self._clock = clock
        self._tick_s = tick_s
        self._memory = Memory()
        self._seq = 0
        #: For which the whole map has arrived; None: for none, so the next report is whole.
        self._epoch: str | None = None
        self._away = False
        #: Ticks that did not arrive, and when one last did.
        self.failures = 0
        self.arrived_s: float | None = None

    async def run(self) -> None:
        """For ever, the first tick at once."""
        while True:
            await self.tick()
            await self._clock.sleep(self._tick_s)

    async def tick(self) -> None:
        """Observe and send; never raises for Redis's sake."""
        self._observe()
        try:
            epoch = await self._send()
            if epoch != self._epoch:
                # Flushed, restarted or failed over since: everything this router knows, once more.
                log.info("activity epoch is now %s: the whole map is sent", epoch)
                self._epoch = None
                self._epoch = await self._send()
        except Unavailable as e:
            self.failures += 1
            # What was in doubt is settled by telling everything when Redis is back.
            self._epoch = None
            if not self._away:
                self._away = True
                log.warning("%s. Routing is untouched; idleness is unknown until it is back", e.text)
            return
        self.arrived_s = self._clock.monotonic_s()
        if self._away:
            self._away = False
            log.info("Redis takes the activity map again")

    async def flush(self) -> bool:
        """The last map of a clean stop; whether it arrived."""
        await self.tick()
        return not self._away

    async def goodbye(self) -> None:
        """Take the report away. Only after `flush`, and after the controller knows that this router left."""
        try:
            await self._store.goodbye()
        except Unavailable as e:
            log.warning("%s; the report ends with its TTL", e.text)

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._store.close()

    def _observe(self) -> None:
        self._memory = observe(
            self._memory,
            (
                (row.replica_id, Use(seen.in_flight, seen.last_touch_ns))
                for row, seen in self._workers.activity()
            ),
            known=self._board.replica_ids,
        )

    async def _send(self) -> str:
        self._seq += 1
        now_ns = int(self._clock.monotonic_s() * 1e9)
        sent = report(self._memory, now_ns=now_ns, whole=self._epoch is None)
        reply = await self._store.send(sent, held=self._workers.held, seq=self._seq, epoch=self._epoch)
        self._memory = told(self._memory, sent)
        if sent.whole:
            self._epoch = reply.epoch
        return reply.epoch
