"""Who waits for room, in which order they are let in, and how long that will take.

Pure: readings of the clock come in. An `Order` is what a queue in front of a model needs of its
discipline; `Line` is the one there is. Another, such as fair queueing by tenant in virtual time, is one
more class with these methods: a ticket says whose flow it belongs to.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

#: Of so many let in while somebody has waited past the age bound, one is the oldest of those.
AGED_SHARE = 4


@dataclass(frozen=True, slots=True)
class Ticket:
    """One place in a queue."""

    #: When it was taken, in the clock of the caller.
    at: float
    #: Larger goes first.
    priority: int = 0
    #: Whose traffic it is; None: nobody's in particular.
    flow: str | None = None


T = TypeVar("T")


class Order(Protocol[T]):
    """A discipline: O(log n) or less an operation, and a place is given up at once."""

    #: Who has waited so long is not passed over for ever.
    age_bound_s: float

    def __len__(self) -> int: ...

    def push(self, one: T, ticket: Ticket) -> None: ...

    def remove(self, one: T) -> bool:
        """It waits no longer; False: it did not wait here."""
        ...

    def first(self, now: float) -> T | None:
        """Who would be let in now; None: nobody waits."""
        ...

    def pop(self, now: float) -> T | None:
        """Let `first` in."""
        ...

    def last(self) -> T | None:
        """Who would make room for a more important one."""
        ...

    def ticket_of(self, one: T) -> Ticket | None: ...

    def ahead(self, ticket: Ticket) -> int:
        """How many of those waiting would usually go before one who comes with this ticket."""
        ...

    def __iter__(self) -> Iterator[T]: ...


class Line(Generic[T]):
    """Larger priority first, then first come first served; and none waits for ever for the more important.

    Who is first of its priority and has waited for `age_bound_s` goes before the more important once in
    AGED_SHARE times: its class gets that share at least, and no more until it is its turn anyway. Letting
    it go first always would turn a backlog of patient work into a wall before people.
    """

    def __init__(self, *, age_bound_s: float) -> None:
        self.age_bound_s = age_bound_s
        #: By priority, largest first; within one in order of arrival. An OrderedDict, since the first key of
        #: a plain one that loses at its front is found in linear time.
        self._classes: dict[int, OrderedDict[T, Ticket]] = {}
        self._count = 0
        #: Let in by priority alone while somebody was past the bound.
        self._since_aged = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (one for waiting in self._classes.values() for one in waiting)

    def push(self, one: T, ticket: Ticket) -> None:
        waiting = self._classes.get(ticket.priority)
        if waiting is None:
            self._classes[ticket.priority] = waiting = OrderedDict()
            self._classes = dict(sorted(self._classes.items(), reverse=True))
        waiting[one] = ticket
        self._count += 1

    def remove(self, one: T) -> bool:
        for priority, waiting in self._classes.items():
            if one in waiting:
                del waiting[one]
                self._count -= 1
                if not waiting:
                    del self._classes[priority]
                return True
        return False

    def ticket_of(self, one: T) -> Ticket | None:
        return next((waiting[one] for waiting in self._classes.values() if one in waiting), None)

    def ahead(self, ticket: Ticket) -> int:
        return sum(len(waiting) for priority, waiting in self._classes.items() if priority >= ticket.priority)

    def first(self, now: float) -> T | None:
        aged = self._aged(now)
        if aged is not None and self._since_aged >= AGED_SHARE - 1:
            return aged
        return next((next(iter(waiting)) for waiting in self._classes.values()), None)

    def last(self) -> T | None:
        least = next(reversed(self._classes.values()), None)
        return None if least is None else next(reversed(least))

    def pop(self, now: float) -> T | None:
        one = self.first(now)
        if one is None:
            return None
        aged = self._aged(now)
        if aged is None or one is aged:
            self._since_aged = 0
        else:
            self._since_aged += 1
        self.remove(one)
        return one

    def _aged(self, now: float) -> T | None:
        """The oldest of those past the bound."""
        oldest: T | None = None
        oldest_at = now - self.age_bound_s
        for waiting in self._classes.values():
            one, ticket = next(iter(waiting.items()))
            if ticket.at <= oldest_at:
                oldest, oldest_at = one, ticket.at
        return oldest


class Pace:
    """Completions per second of late: two windows of fixed length, counted lazily; no timer, no list."""

    __slots__ = ("_before", "_began", "_count", "_first", "_window_s")

    def __init__(self, *, window_s: float = 20.0) -> None:
        self._window_s = window_s
        self._began: float | None = None
        self._first = 0.0
        self._count = 0
        self._before = 0

    def note(self, now: float, count: int = 1) -> None:
        """So many have ended since the last call. What the first call tells began before anybody looked."""
        self._turn(now)
        if self._began is None:
            self._began = self._first = now
        else:
            self._count += count

    def per_s(self, now: float) -> float | None:
        """None: too little was seen to say."""
        self._turn(now)
        if self._began is None:
            return None
        # The window before counts as far as it reaches into the last full length of time.
        count = self._count + self._before * (1.0 - (now - self._began) / self._window_s)
        over_s = min(self._window_s, now - self._first)
        return count / over_s if over_s > 0 and count > 0 else None

    def _turn(self, now: float) -> None:
        began = self._began
        if began is None or now - began < self._window_s:
            return
        late_s = now - began
        if late_s >= 2 * self._window_s:
            self._began, self._count, self._before = None, 0, 0
        else:
            self._before, self._count = self._count, 0
            self._began = began + self._window_s


def wait_s(ahead: int, per_s: float | None) -> float | None:
    """How long one with so many ahead of it will wait; None: the pace is not known."""
    return None if per_s is None else (ahead + 1) / per_s


def share(limit: int, workers: int) -> int:
    """Of a limit that cannot be counted together, one worker's part: even, rounded up, at least 1."""
    return max(1, -(-limit // workers))


#: A rank orders the heads of the same model's queues in several workers, as one integer: priority above,
#: then the time of arrival on the machine's one monotonic clock. Smaller goes first; 0 is "nobody waits".
_PRIORITY_SPAN = 1 << 14
_MS_BITS = 44


def rank(priority: int, at_ms: int) -> int:
    """`at_ms`: CLOCK_MONOTONIC in milliseconds, which is one clock for all processes of a machine."""
    above = _PRIORITY_SPAN - min(max(priority, 1 - _PRIORITY_SPAN), _PRIORITY_SPAN - 1)
    return (above << _MS_BITS) | (at_ms & ((1 << _MS_BITS) - 1))
