"""Whether this process has itself been asleep: stopped, swapped out, or with a loop too busy to turn.

A leader that slept hears nothing, and at its waking every node looks silent together. What it missed may
still lie unread in its sockets, so silence counts from the waking (`Snapshot.awake_since`). Of nodes that
were silent before it fell asleep it only leaves the sleep out.
"""

from collections.abc import Callable

from llmgw_kit.clock import Clock

#: Between two looks.
LOOK_S = 1.0
#: A look so late tells of a sleep. Well below the time after which a node counts as unreachable.
LATE_S = 3.0


class Wakefulness:
    """Looks at the monotonic clock once a second, and whenever it is asked."""

    def __init__(self, clock: Clock, now: Callable[[], float]) -> None:
        self._clock = clock
        self._now = now
        self._looked_at = clock.monotonic_s()
        self._since: float | None = None
        #: When the last sleep had begun, at the earliest, by the term clock; read `since` first.
        self.asleep_since: float | None = None

    async def run(self) -> None:
        """For ever."""
        while True:
            self.look()
            await self._clock.sleep(LOOK_S)

    @property
    def since(self) -> float | None:
        """By the term clock; None: awake since this was made."""
        self.look()  # The first to run after a sleep may be whoever asks.
        return self._since

    def look(self) -> None:
        """A look that comes late tells of a sleep."""
        looked_at = self._clock.monotonic_s()
        if looked_at - self._looked_at > LATE_S:
            self._since = self._now()
            self.asleep_since = self._since - (looked_at - self._looked_at)
        self._looked_at = looked_at
