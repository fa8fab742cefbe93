"""Header fields of RFC 9110 as the mirror reads them: lengths, ranges, validators, waiting times."""

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)
_RANGE = re.compile(r"bytes\s*=\s*(?:(\d+)\s*-\s*(\d+)?|-\s*(\d+))\s*", re.IGNORECASE)
#: `"resolvers";r=0;t=42` (draft-ietf-httpapi-ratelimit-headers): remaining and seconds to the reset.
_PARAMETER = re.compile(r";\s*([rt])\s*=\s*(\d+)(?=\s*(?:;|$))")
#: Digits beyond these are no length of anything; int() of a megabyte of digits takes long.
DIGITS_MAX = 18


@dataclass(frozen=True)
class ContentRange:
    """`start` and `end` (inclusive) are None in the answer to a range that cannot be had (416)."""

    start: int | None
    end: int | None
    total: int | None


def content_range(text: str | None) -> ContentRange | None:
    """None when absent or not understood."""
    match = _CONTENT_RANGE.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    start, end, total = (_number(group) for group in match.groups())
    if start is not None and end is not None and (end < start or (total is not None and end >= total)):
        return None
    if (start is None) != (end is None):
        return None
    return ContentRange(start, end, total)


def length(text: str | None) -> int | None:
    """Content-Length; None when absent or not a number."""
    text = text.strip() if text else ""
    return _number(text) if text.isascii() and text.isdigit() else None


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > DIGITS_MAX:
        return None
    return int(text)


def validator(etag: str | None, last_modified: str | None) -> str | None:
    """What If-Range may carry: a strong ETag, else the date. A weak ETag proves nothing about bytes
    (RFC 9110 section 13.1.5)."""
    if etag and (tag := etag.strip()).startswith('"') and tag.endswith('"') and len(tag) > 2:
        return tag
    return last_modified.strip() if last_modified and last_modified.strip() else None


def retry_after_s(retry_after: str | None, rate_limit: str | None, *, now: float) -> float | None:
    """Seconds to wait before asking this origin again; `now` in unix seconds. None: nobody said."""
    if retry_after:
        text = retry_after.strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - now)
        except (ValueError, TypeError, OverflowError):
            pass  # not a date either: as if it had not been sent
    return exhausted_s(rate_limit)


def exhausted_s(rate_limit: str | None) -> float | None:
    """Seconds until the origin gives anything again, from a RateLimit field: also on answers that are good,
    so that nobody need be refused first. None: something is left, or nobody said."""
    waits = []
    for item in (rate_limit or "").split(","):
        told = {name: int(number[:9]) for name, number in _PARAMETER.findall(item)}
        if told.get("r") == 0 and "t" in told:
            waits.append(float(told["t"]))
    return max(waits, default=None)


@dataclass(frozen=True)
class Slice:
    """`count` bytes from `start`."""

    start: int
    count: int

    def content_range(self, size: int) -> str:
        return f"bytes {self.start}-{self.start + self.count - 1}/{size}"


class Unsatisfiable(ValueError):
    """No byte of the file is in the range: 416."""


def requested_slice(range_header: str | None, *, size: int) -> Slice | None:
    """The one range a client asks for, clipped to the file; None: send all of it.

    What is not understood, and several ranges at once, count as no range (RFC 9110 section 14.2).
    Raises Unsatisfiable."""
    match = _RANGE.fullmatch(range_header.strip()) if range_header else None
    if match is None:
        return None
    first, last, suffix = (_position(group) for group in match.groups())
    if suffix is not None:
        if suffix == 0 or size == 0:
            raise Unsatisfiable
        return Slice(max(0, size - suffix), min(suffix, size))
    assert first is not None
    if last is not None and last < first:
        return None
    if first >= size:
        raise Unsatisfiable
    end = size - 1 if last is None else min(last, size - 1)
    return Slice(first, end - first + 1)


def _position(text: str | None) -> int | None:
    if text is None:
        return None
    # More digits than any file has bytes: past every end.
    return int(text) if len(text) <= DIGITS_MAX else 10**DIGITS_MAX


def lists_etag(header: str | None, etag: str) -> bool:
    """Whether If-None-Match names this (strong, quoted) ETag; the comparison is the weak one."""
    if not header:
        return False
    return header.strip() == "*" or any(tag.strip().removeprefix("W/") == etag for tag in header.split(","))
