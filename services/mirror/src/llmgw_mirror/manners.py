"""How the mirror behaves towards upstreams and its own disk: patience, pauses, and how many at once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_mirror.core.origins import origin_of


@dataclass(frozen=True)
class Pace:
    """How patient the mirror is; see settings.py for the reasons."""

    stall_window_s: float = 30.0
    stall_bytes: int = 1
    attempts: int = 8
    backoff_base_s: float = 0.5
    backoff_most_s: float = 60.0
    #: Longest pause an upstream may ask for before the file fails instead.
    pause_most_s: float = 3600.0
    lease_ttl_s: float = 15.0
    lease_poll_s: float = 2.0


class Slots:
    """So many files at once, and so many of one origin; one that waits for its upstream gives its place to
    another. `per_origin` None: no bound of its own."""

    def __init__(self, count: int, per_origin: int | None = None) -> None:
        self._free = asyncio.Semaphore(count)
        self._per_origin = per_origin
        #: As many as there are origins that somebody named.
        self._origins: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def one(self, url: str) -> "AsyncIterator[Slot]":
        """For the time of one file."""
        # The origin's first: who waits for a busy origin must not keep others from theirs.
        needed = [self._free]
        if self._per_origin is not None:
            of_origin = self._origins.setdefault(_origin(url), asyncio.Semaphore(self._per_origin))
            needed.insert(0, of_origin)
        slot = Slot(needed)
        await slot.take()
        try:
            yield slot
        finally:
            slot.give()


class Slot:
    """One file's place, held or not."""

    def __init__(self, needed: Sequence[asyncio.Semaphore]) -> None:
        self._needed = needed
        self._held: list[asyncio.Semaphore] = []

    async def take(self) -> None:
        try:
            for semaphore in self._needed:
                await semaphore.acquire()
                self._held.append(semaphore)
        except asyncio.CancelledError:
            self.give()
            raise

    def give(self) -> None:
        while self._held:
            self._held.pop().release()


class Pauses:
    """Origins that asked to be left alone, for the whole process: many small files otherwise make a
    storm of one 429 (H12)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def note(self, url: str, seconds: float) -> None:
        origin = _origin(url)
        until = self._clock.monotonic_s() + seconds
        self._until[origin] = max(until, self._until.get(origin, until))

    def holds(self, url: str) -> bool:
        return self._left(url) > 0

    async def wait(self, url: str) -> None:
        while (left := self._left(url)) > 0:
            await self._clock.sleep(left)

    def _left(self, url: str) -> float:
        return self._until.get(_origin(url), 0.0) - self._clock.monotonic_s()


def _origin(url: str) -> str:
    scheme = url.partition(":")[0]
    return str(origin_of(url)) if scheme in ("http", "https") else scheme
