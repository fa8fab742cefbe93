"""Whether the leader is still heard: a frozen one, or a dead connection, ends no stream for a long time."""

import asyncio

from llmgw_kit.clock import Clock

#: Nothing came for so many beats: ask elsewhere, while this stream is kept.
SILENT_BEATS = 1.5
#: Never sooner: a busy controller's beat may be late by that much.
SILENT_LEAST_S = 2.0


class Pulse:
    """Of one session. `silent` and `back` are set in turn; a controller that never beat is of an earlier
    release, and its silence says nothing."""

    def __init__(self, clock: Clock, beat_interval_s: float) -> None:
        self._clock = clock
        self._patience_s = max(SILENT_LEAST_S, SILENT_BEATS * beat_interval_s)
        self._heard_at = clock.monotonic_s()
        self._beats = False
        self.silent = asyncio.Event()
        self.back = asyncio.Event()

    def note(self, *, is_beat: bool) -> None:
        """Something was heard."""
        self._heard_at = self._clock.monotonic_s()
        self._beats = self._beats or is_beat
        self.silent.clear()
        self.back.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            left_s = self._heard_at + self._patience_s - self._clock.monotonic_s()
            if left_s <= 0 and self._beats:
                self.back.clear()
                self.silent.set()
                await self.back.wait()
                continue
            await self._clock.sleep(left_s if left_s > 0 else self._patience_s)
