"""Does an engine that has requests get anywhere: its counters of work, read beside its gauge.

Nothing is ever concluded from a reading that is missing: the measure begins anew with the next one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """One reading of an engine's metrics page."""

    #: Requests it has, running and waiting.
    running: int
    #: Sum of the counters that grow while it works; None: it has none.
    work: float | None


@dataclass(frozen=True)
class Progress:
    """`still_since`: monotonic seconds since when it has had requests and its counters stood still."""

    running: int
    work: float
    still_since: float

    def stalled_s(self, now: float) -> float:
        """0 while it is at rest or gets on."""
        return max(0.0, now - self.still_since) if self.running else 0.0


def observed(before: Progress | None, numbers: Numbers | None, now: float) -> Progress | None:
    """After one reading; `numbers` None: it could not be had.

    A request that is seen for the first time has waited from this reading on, however long ago the last was;
    a counter that differs in either direction is movement."""
    if numbers is None or numbers.work is None:
        return None
    still = before is not None and before.running > 0 and numbers.running > 0 and before.work == numbers.work
    since = before.still_since if before is not None and still else now
    return Progress(numbers.running, numbers.work, since)


def moved(before: Progress | None, after: Progress | None) -> bool:
    """Requests were worked on between the two readings."""
    return before is not None and after is not None and before.work != after.work
