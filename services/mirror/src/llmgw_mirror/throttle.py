"""The cap on what comes, as transfers meet it."""

from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_mirror.core.pacing import Bucket, Limits

#: A cap that changes is noticed within so many seconds.
LOOK_S = 1.0
#: Waits shorter than this cost more than they hold back.
SHORTEST_S = 0.001


class Held(Exception):
    """The schedule lets nothing through now: let go of the connection and come again."""


@dataclass(frozen=True)
class Cap:
    """`bytes_s` 0: nothing may come. `until` in seconds since 1970; None: it stays so."""

    bytes_s: int
    until: float | None


class Throttle:
    """One for all transfers of a process."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._bucket = Bucket(clock.monotonic_s())
        self._looked_at = -LOOK_S
        self._bytes_s: int | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing may come now."""
        return self._now() == 0

    def cap(self) -> Cap | None:
        """What holds now; None: no cap."""
        now = self._clock.unix_s()
        bytes_s = self._limits.at(now)
        return None if bytes_s is None else Cap(bytes_s, self._limits.changes_at(now))

    async def wait_open(self) -> None:
        """Until something may come."""
        while self.holds:
            until = self._limits.changes_at(self._clock.unix_s())
            # Never longer than a minute: the wall clock may be set.
            left_s = 60.0 if until is None else until - self._clock.unix_s()
            await self._clock.sleep(min(60.0, max(LOOK_S, left_s)))

    async def take(self, count: int) -> None:
        """So many bytes came; returns when the next may. Raises Held."""
        bytes_s = self._now()
        if bytes_s is None:
            return
        self._bucket.flow(self._clock.monotonic_s(), bytes_s)
        place = self._bucket.take(count)
        while bytes_s is not None:
            if bytes_s == 0:
                raise Held
            wait_s = self._bucket.wait_s(place, bytes_s)
            if wait_s <= 0:
                return
            await self._clock.sleep(min(max(wait_s, SHORTEST_S), LOOK_S))
            self._bucket.flow(self._clock.monotonic_s(), bytes_s)
            bytes_s = self._now()

    def _now(self) -> int | None:
        now = self._clock.monotonic_s()
        if now - self._looked_at >= LOOK_S:
            self._looked_at, self._bytes_s = now, self._limits.at(self._clock.unix_s())
        return self._bytes_s
