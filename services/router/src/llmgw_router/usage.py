"""Usage records on their way: out of the workers' spools, into a database or a file, each exactly once.

What was read is offered to the sink until the sink has it; only then is it forgotten here. A restart at any
moment repeats at most what the sink already knows.
"""

import asyncio
import logging
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_router.ports import UsageSink, UsageSpools

log = logging.getLogger(__name__)

#: Between two looks into the spools.
SHIP_EVERY_S = 1.0
#: A sink that refuses is left alone for so long.
RETRY_S = 3.0
REPEAT_S = 60.0
#: For a last pass when everything stops; what it leaves, the next start takes up.
FLUSH_S = 5.0


@dataclass(frozen=True)
class UsageView:
    """For metrics and admin pages."""

    shipped: int
    #: None: the sink takes what it is given.
    silent_s: float | None


class UsageLoop:
    """One per router; nobody else reads its spools."""

    def __init__(self, spools: UsageSpools, sink: UsageSink, clock: Clock) -> None:
        self._spools = spools
        self._sink = sink
        self._clock = clock
        self._shipped = 0
        self._silent_since: float | None = None
        self._said_at = 0.0
        self._handing: asyncio.Task[bool] | None = None

    @property
    def view(self) -> UsageView:
        since = self._silent_since
        return UsageView(self._shipped, None if since is None else self._clock.monotonic_s() - since)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(SHIP_EVERY_S if await self.step() else RETRY_S)

    async def step(self) -> bool:
        """Hand over all there is; whether the sink took it. Goes on when who waits for it is cancelled: what
        the sink has and the spool does not know of would be handed over twice."""
        self._handing = asyncio.create_task(self._hand_over(), name="usage on its way")
        return await asyncio.shield(self._handing)

    async def _hand_over(self) -> bool:
        try:
            while True:
                batch = await asyncio.to_thread(self._spools.read)
                if batch.records:
                    await self._sink.put(batch.records)
                await asyncio.to_thread(self._spools.taken, batch)
                self._shipped += len(batch.records)
                if not batch.more:
                    break
        except (Unavailable, OSError) as e:
            await self._silence(e.text if isinstance(e, Unavailable) else str(e))
            return False
        # Nothing of a former life is left in the spools.
        self._sink.settled()
        if self._silent_since is not None:
            log.warning("usage is written again after %.0f s", self._clock.monotonic_s() - self._silent_since)
            self._silent_since = None
        return True

    async def flush(self) -> None:
        """The last pass, when the workers are gone."""
        try:
            async with asyncio.timeout(FLUSH_S):
                if self._handing is not None:
                    await asyncio.shield(self._handing)
                await self.step()
        except TimeoutError:
            log.warning("usage that is not written yet stays in its spool, for the next start")

    async def close(self) -> None:
        """Close sink and spools, also when something is on its way still: the next start offers it again."""
        if self._handing is not None:
            await cancel_all(self._handing)
        await self._sink.close()
        self._spools.close()

    async def _silence(self, why: str) -> None:
        now = self._clock.monotonic_s()
        if self._silent_since is None:
            self._silent_since, self._said_at = now, now - REPEAT_S
        if now - self._said_at >= REPEAT_S:
            self._said_at = now
            log.error("%s; it is kept in the spool, and written when that is possible again", why)
        try:
            await asyncio.to_thread(self._spools.sync)
        except OSError as e:
            log.error("the usage spool cannot be put on the disk: %s", e)
