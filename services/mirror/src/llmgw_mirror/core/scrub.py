"""Which content to read again next, and how fast: pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """One content. `verified_at`: when it was last read whole and found right, seconds since 1970."""

    sha256: str
    size_bytes: int
    verified_at: float


def next_due(held: Iterable[Held], *, now: float, interval_s: float) -> Held | None:
    """What was verified longest ago, when that is an interval or more; None: nothing is due.

    A time in the future is a clock that was set back, or a disk that came from elsewhere: due at once,
    or it would not be looked at for as long as the clocks differ."""
    due = [one for one in held if not 0 <= now - one.verified_at < interval_s]
    return min(due, key=lambda one: (min(one.verified_at, now), one.sha256), default=None)


def wait_s(held: Iterable[Held], *, now: float, interval_s: float, most_s: float) -> float:
    """Until the next content is due, at most `most_s`: content comes and goes meanwhile."""
    soonest = min((one.verified_at for one in held), default=now)
    return max(0.0, min(most_s, soonest + interval_s - now))


#: While nodes read, one chunk so often: a disk that is always read must still be proved one day.
YIELD_MOST_S = 30.0
#: No clock wakes anybody much sooner.
SHORTEST_S = 0.001


def pause_s(
    chunk_bytes: int, took_s: float, *, rate_bytes_s: float | None, nodes_read: bool, yielded_s: float
) -> float:
    """To wait after a chunk. `rate_bytes_s` None: as fast as it goes. `yielded_s`: how long this chunk's
    successor has waited for nodes that read already."""
    if nodes_read and yielded_s < YIELD_MOST_S:
        return min(1.0, YIELD_MOST_S - yielded_s)
    if rate_bytes_s is None or yielded_s > 0:
        return 0.0
    pause = chunk_bytes / rate_bytes_s - took_s
    return pause if pause >= SHORTEST_S else 0.0
