"""Time that a test holds in its hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools

#: Turns of the loop given to woken tasks before time moves on. A task that needs more turns between two
#: sleeps (a chain of futures this long) should be awaited by the test instead.
SETTLE_TURNS = 20


class FakeClock:
    """A Clock (llmgw_kit.clock) that moves only when told to. One event loop at a time."""

    def __init__(self, *, unix_s: float = 1_800_000_000.0, monotonic_s: float = 1_000.0) -> None:
        self._unix_s = unix_s
        self._monotonic_s = monotonic_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def unix_s(self) -> float:
        """What the wall says."""
        return self._unix_s

    def monotonic_s(self) -> float:
        """What has passed."""
        return self._monotonic_s

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has passed that point; 0 and less only gives way once, as asyncio does."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_s + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many tasks wait for this clock now."""
        return sum(1 for _, _, woken in self._sleepers if not woken.done())

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking each sleeper at its own moment and letting it run before the next."""
        if seconds < 0:
            raise ValueError(f"time does not go back, got {seconds}; jump_unix moves the wall clock alone")
        until = self._monotonic_s + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue  # its task was cancelled
            self._unix_s += at - self._monotonic_s
            self._monotonic_s = at
            woken.set_result(None)
            await self._settle()
        self._unix_s += until - self._monotonic_s
        self._monotonic_s = until

    def jump_unix(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP may; nothing else passes."""
        self._unix_s += seconds

    async def until_asleep(self, count: int = 1) -> None:
        """Give way until so many tasks wait for this clock; AssertionError when that does not come about."""
        for _ in range(1_000):
            if self.sleepers >= count:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{self.sleepers} tasks sleep on the clock, {count} were expected")

    @staticmethod
    async def _settle() -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
