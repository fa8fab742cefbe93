"""Numbers as people read them: durations, sizes, counts, times. Unknown is `-`, never 0."""

from datetime import UTC, datetime

from llmgw_kit.text import joined as joined

MINUTE = 60
HOUR = 3600
DAY = 86400


def duration(seconds: float | None) -> str:
    """At most two units: `48 s`, `2 m 08 s`, `26 h 14 m`, `3 d 04 h`. None is `-`."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} m {whole % MINUTE:02} s"
    if whole < 2 * DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02} m"
    return f"{whole // DAY} d {whole % DAY // HOUR:02} h"


def size(value: float | None) -> str:
    """Decimal, three digits: `4.98 GB`, `112 MB`. None is `-`."""
    if value is None:
        return "-"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value:.0f} B"


def size_of(part: float | None, total: float | None) -> str:
    """`2.3 of 13.5 TB`: both in the unit of the total. What is too little to be seen in it is not 0."""
    if total is None:
        return "-"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if total >= scale:
            shown = "-" if part is None else "<0.01" if 0 < part < scale / 100 else f"{part / scale:.3g}"
            return f"{shown} of {total / scale:.3g} {unit}"
    return f"{size(part)} of {size(total)}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def moment(unix_s: float | None, *, now: float, seconds: bool = False) -> str:
    """UTC: `11:22` today, `29 Nov 12:18` before; with `seconds` `11:22:05`. None is `-`."""
    if unix_s is None:
        return "-"
    then = datetime.fromtimestamp(unix_s, UTC)
    today = datetime.fromtimestamp(now, UTC).date()
    time = f"{then:%H:%M:%S}" if seconds else f"{then:%H:%M}"
    return time if then.date() == today else f"{then.day} {then:%b} {time}"


def ago(unix_s: float | None, *, now: float) -> str:
    """`now`, `2 m 08 s ago`. None is `-`."""
    if unix_s is None:
        return "-"
    seconds = now - unix_s
    return "now" if seconds < 10 else f"{duration(seconds)} ago"


def iso(unix_s: float | None) -> str | None:
    """For JSON: RFC 3339, UTC, whole seconds."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
