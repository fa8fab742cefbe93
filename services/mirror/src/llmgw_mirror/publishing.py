"""The lease for the store's two short, opposite acts: naming content in a receipt, and removing content
that nothing names. Kept for as long as it is held, and proved to be ours before each removal.

A process can be frozen between any two instructions and wake when another has the lease. What it found out
before is then worth nothing: `Hold.sure` asks the ledger, and `Hold.in_time` asks the clock, last of all.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.core.versions import Moving, WeightsState
from llmgw_mirror.leases import let_go
from llmgw_mirror.ports import Lease, Ledger

log = logging.getLogger(__name__)

PUBLISHING = "publishing"
#: Of a lease's time: what is relied on. The rest is for clocks that differ and answers that take long.
RELIED_ON = 0.8

NOTHING_MOVES = Moving(WeightsState.VERIFYING, 0, None)


class Hold:
    """The lease while it is held."""

    def __init__(self, lease: Lease, granted_at: float, ledger: Ledger, clock: Clock, ttl_s: float) -> None:
        self._lease = lease
        self._ledger = ledger
        self._clock = clock
        self._ttl_s = ttl_s
        self._safe_until = granted_at + ttl_s * RELIED_ON

    async def sure(self) -> None:
        """Nobody else has had it since it was granted, and nobody will for a while. Raises Unavailable."""
        asked_at = self._clock.monotonic_s()
        if not await self._ledger.renew(self._lease, ttl_s=self._ttl_s, moving=NOTHING_MOVES):
            raise _lost()
        self._safe_until = max(self._safe_until, asked_at + self._ttl_s * RELIED_ON)

    def in_time(self) -> None:
        """The last look before an act that must not come late; from any thread. Raises Unavailable."""
        if self._clock.monotonic_s() >= self._safe_until:
            raise _lost()

    async def keep(self) -> None:
        """Renew until cancelled, whether or not that succeeds: who acts asks anyway."""
        while True:
            await self._clock.sleep(self._ttl_s / 4)
            try:
                await self.sure()
            except Unavailable as e:
                log.debug("the lease on publishing is not renewed: %s", e.text)


class Publishing:
    """Of one mirror process."""

    def __init__(self, *, ledger: Ledger, clock: Clock, ttl_s: float, poll_s: float) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ttl_s = ttl_s
        self._poll_s = poll_s
        self._here = asyncio.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Hold]:
        """Only one in the store names or removes content. Raises Unavailable when the ledger is."""
        async with self._here:
            while True:
                asked_at = self._clock.monotonic_s()
                lease = await self._ledger.acquire(PUBLISHING, ttl_s=self._ttl_s)
                if lease is not None:
                    break
                await self._clock.sleep(self._poll_s)
            hold = Hold(lease, asked_at, self._ledger, self._clock, self._ttl_s)
            keeper = asyncio.create_task(hold.keep(), name="lease publishing")
            try:
                yield hold
            finally:
                keeper.cancel()
                await asyncio.wait({keeper})
                await let_go(self._ledger, lease)


def _lost() -> Unavailable:
    return Unavailable(
        "the lease on publishing was lost: this mirror was slower than its lease_ttl_s",
        code="lease_lost",
        next_steps=["ask again; if it happens again, see whether the mirror's disk or Postgres is slow"],
    )
