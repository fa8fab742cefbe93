"""How fast bytes may come: a cap, a schedule of caps over the week, and one bucket for all fetches.

A schedule is read entry by entry, the first that covers the moment counts, and outside all of them the
usual cap does:

    mon-fri 08:00-18:00=20MB/s, 22:00-06:00=unlimited, sat=pause, *=100MB/s
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from llmgw_kit.errors import InvalidRequest

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
#: What may come at once after a silence, in seconds of the cap.
BURST_S = 0.25

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMG]?i?B)(?:/s)?", re.IGNORECASE)
_TIMES = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_WHEN = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?)?\s*(?:(\d{1,2}:\d{2}-\d{1,2}:\d{2}))?")


@dataclass(frozen=True)
class Rule:
    """`days`: of the begin, 0 is Monday. Minutes of the local day; an end before the begin is on the next
    day. `bytes_s`: None is unlimited, 0 lets nothing through."""

    days: frozenset[int]
    start_min: int
    end_min: int
    bytes_s: int | None

    def covers(self, local: datetime) -> bool:
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.start_min < self.end_min:
            return day in self.days and self.start_min <= minute < self.end_min
        if minute >= self.start_min:
            return day in self.days
        return minute < self.end_min and (day - 1) % 7 in self.days


@dataclass(frozen=True)
class Limits:
    """`usual_bytes_s`: where no rule says otherwise; None is unlimited."""

    usual_bytes_s: int | None = None
    rules: tuple[Rule, ...] = ()
    zone: tzinfo = UTC

    def at(self, unix_s: float) -> int | None:
        """The cap in bytes a second; None: unlimited, 0: nothing may come."""
        local = datetime.fromtimestamp(unix_s, self.zone)
        return next((rule.bytes_s for rule in self.rules if rule.covers(local)), self.usual_bytes_s)

    def changes_at(self, unix_s: float) -> float | None:
        """When the cap is next another one; None: it never is."""
        now = self.at(unix_s)
        for moment in sorted(self._edges(unix_s)):
            if moment > unix_s and self.at(moment) != now:
                return moment
        return None

    def _edges(self, unix_s: float) -> Iterator[float]:
        midnight = datetime.fromtimestamp(unix_s, self.zone).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        minutes = {minute % DAY_MINUTES for rule in self.rules for minute in (rule.start_min, rule.end_min)}
        for day in range(9 if self.rules else 0):
            for minute in minutes | {0}:
                # Wall-clock arithmetic, so that 22:00 stays 22:00 where the clocks are changed.
                yield (midnight + timedelta(days=day, minutes=minute)).timestamp()


def parse_rate(text: str) -> int | None:
    """`50MB`, `50 MiB/s`, `unlimited` (None) or `pause` (0). Raises InvalidRequest."""
    word = text.strip()
    if word.lower() == "unlimited":
        return None
    if word.lower() == "pause":
        return 0
    match = _RATE.fullmatch(word)
    rate = round(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if rate == 0:
        raise InvalidRequest(
            f"{text!r} is no cap; expected a size a second such as 50MB or 50MiB/s, or unlimited, or pause",
            next_steps=["write it as in 50MB/s, unlimited or pause"],
        )
    return rate


def parse_schedule(text: str) -> tuple[Rule, ...]:
    """Entries `[DAY[-DAY]] [HH:MM-HH:MM]=CAP` or `*=CAP`, divided by commas. Raises InvalidRequest."""
    rules = []
    for entry in text.split(","):
        when, equals, rate = entry.partition("=")
        if not equals:
            raise InvalidRequest(
                f"{entry.strip()!r} in the schedule is no entry; expected TIME=CAP or *=CAP",
                next_steps=["write it as in 08:00-18:00=10MB"],
            )
        days, start, end = _when(when.strip().lower())
        rules.append(Rule(days, start, end, parse_rate(rate)))
    return tuple(rules)


def _when(text: str) -> tuple[frozenset[int], int, int]:
    every = frozenset(range(7))
    if text == "*":
        return every, 0, DAY_MINUTES
    match = _WHEN.fullmatch(text)
    if match is None or not text:
        raise InvalidRequest(
            f"{text!r} in the schedule is no time; "
            "expected HH:MM-HH:MM, a day or days such as mon-fri, both, or *",
            next_steps=["write it as in mon-fri 08:00-18:00"],
        )
    first, last, times = match.groups()
    days = every if first is None else _days(first, last or first)
    if times is None:
        return days, 0, DAY_MINUTES
    return days, *_minutes(times)


def _days(first: str, last: str) -> frozenset[int]:
    for day in (first, last):
        if day not in DAYS:
            raise InvalidRequest(
                f"{day!r} in the schedule is no day; expected one of {', '.join(DAYS)}",
                next_steps=["write it as in mon or mon-fri"],
            )
    start, count = DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7
    return frozenset((start + n) % 7 for n in range(count + 1))


def _minutes(times: str) -> tuple[int, int]:
    match = _TIMES.fullmatch(times)
    assert match is not None, "its shape was matched before"
    hours_minutes = [int(part) for part in match.groups()]
    start, end = (hours_minutes[n] * 60 + hours_minutes[n + 1] for n in (0, 2))
    if max(hours_minutes[1], hours_minutes[3]) > 59 or start >= DAY_MINUTES or end > DAY_MINUTES:
        raise InvalidRequest(
            f"{times!r} in the schedule is no time of a day; expected 00:00 to 24:00",
            next_steps=["write it as in 08:00-18:00"],
        )
    if start == end:
        raise InvalidRequest(
            f"{times!r} in the schedule is no time at all; for the whole day leave it out",
            next_steps=["give an end that is not the beginning"],
        )
    return start, end


@dataclass
class Bucket:
    """What all fetches together may still take. Whoever takes is given a place in the line of bytes, and
    waits until the line has come so far: in turn, and a cap that changes counts from that moment.

    Every call is given the time (monotonic seconds)."""

    at: float
    allowed: float = 0.0
    taken: int = 0

    def flow(self, now: float, bytes_s: int) -> None:
        """Time has passed at this cap."""
        self.allowed += max(0.0, now - self.at) * bytes_s
        # A silence is not saved up.
        self.allowed = min(self.allowed, self.taken + bytes_s * BURST_S)
        self.at = max(self.at, now)

    def take(self, count: int) -> int:
        """Returns the place."""
        self.taken += count
        return self.taken

    def wait_s(self, place: int, bytes_s: int) -> float:
        """Until the line is there, at this cap."""
        left = place - self.allowed
        # A fraction of a byte is no reason to wait.
        return left / bytes_s if left >= 1 else 0.0
