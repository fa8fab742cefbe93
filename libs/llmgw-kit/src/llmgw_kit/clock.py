"""Time as a thing that is passed in, so that a test can hold it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Three readings that must not be mixed: what the wall says, what has passed, and waiting."""

    def unix_s(self) -> float:
        """Seconds since 1970; may jump. For people and for rows only."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an unnamed start; never jumps. For every time-out and every lease."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own."""

    def unix_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
