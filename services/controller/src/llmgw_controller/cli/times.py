"""Times as people type them: a span back from now, a time of day, a date; all UTC."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import click

#: A hundred years: what began then is before any record, and no time with a date is left before it.
SPAN_MOST_S = 36_500 * 86_400.0

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def span(text: str) -> float | None:
    """Seconds; None: it is written as something else."""
    found = _SPAN.fullmatch(text)
    return float(found[1]) * _UNITS[found[2]] if found else None


class Span(click.ParamType[float]):
    """`90s`, `15m`, `3h`, `7d`: seconds."""

    name = "span"
    UNITS: ClassVar = _UNITS

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        seconds = span(str(value))
        if seconds is None:
            self.fail(
                f"{str(value)!r} is not a span of time; expected a number and s, m, h or d, such as 3h",
                param,
                ctx,
            )
        if seconds > SPAN_MOST_S:
            self.fail(f"{str(value)[:40]!r} is too long; expected at most 36500d", param, ctx)
        return seconds


class Moment(click.ParamType[float]):
    """`-2h`, `14:05`, `2026-11-30T14:05`: unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        now = time.time()
        found = moment(str(value), now=now)
        if found is not None and not now - SPAN_MOST_S <= found <= now + SPAN_MOST_S:
            self.fail(f"{str(value)[:40]!r} is too far away; expected a time of this century", param, ctx)
        if found is None:
            self.fail(
                f"{str(value)!r} is no time; expected -2h, 14:05, or 2026-11-30T14:05 (UTC)", param, ctx
            )
        return found


def moment(text: str, *, now: float) -> float | None:
    """None: not understood. A time of day is the last one that has come; a date without a zone is UTC."""
    text = text.strip()
    if back := _SPAN.fullmatch(text.removeprefix("-")):
        return now - float(back[1]) * _UNITS[back[2]]
    today = datetime.fromtimestamp(now, UTC)
    if clock := _CLOCK.fullmatch(text):
        hour, minute, second = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        if hour > 23 or minute > 59 or second > 59:
            return None
        then = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (then if then <= today else then - timedelta(days=1)).timestamp()
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
