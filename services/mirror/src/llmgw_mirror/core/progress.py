"""Rate and remaining time from what was received when; unknown until there is something to go by."""

from collections import deque
from dataclasses import dataclass, field

#: The rate is that of so many last seconds: long enough to be steady, short enough to show a change.
WINDOW_S = 10.0
#: Two readings closer than this say nothing about a rate.
SHORTEST_S = 0.5


@dataclass
class Meter:
    """Readings of one transfer; every call is given the time (monotonic seconds)."""

    _readings: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, received_bytes: int) -> None:
        """A count that went back (started over) makes the older readings void."""
        if self._readings and received_bytes < self._readings[-1][1]:
            self._readings.clear()
        # Readings a tenth of a window apart suffice; chunks come far faster.
        if len(self._readings) >= 2 and now - self._readings[-2][0] < WINDOW_S / 10:
            self._readings[-1] = (now, received_bytes)
        else:
            self._readings.append((now, received_bytes))
        while len(self._readings) > 2 and now - self._readings[1][0] >= WINDOW_S:
            self._readings.popleft()

    def rate_bytes_s(self, now: float) -> float | None:
        """Over the last window, silence since the last reading included. None: too early to tell."""
        if not self._readings:
            return None
        at, received = self._readings[0]
        if now - at < SHORTEST_S:
            return None
        if now - self._readings[-1][0] >= WINDOW_S:
            return 0.0
        return (self._readings[-1][1] - received) / (now - at)

    def eta_s(self, now: float, total_bytes: int | None) -> float | None:
        """None when the size or the rate is unknown, or nothing moves."""
        rate = self.rate_bytes_s(now)
        if total_bytes is None or not rate:
            return None
        return max(0.0, total_bytes - self._readings[-1][1]) / rate
