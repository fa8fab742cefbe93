"""One meaning for every path: normalised before anything is decided by it, and sent on that way (W60).

RFC 3986 section 6.2.2: escapes of unreserved characters are decoded, dot segments removed. Beyond
that, repeated slashes are one and a trailing slash is none, as the OpenAI API has neither.
An escaped slash stays escaped: it is part of a name, not a separator.
"""

import re

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_AUTHORITY = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


class BadPath(ValueError):
    """A request target that has no sound reading."""


def _unescape(match: re.Match[bytes]) -> bytes:
    digits = match.group(1)
    if digits is None:
        raise BadPath("a percent sign without two hex digits")
    value = int(digits, 16)
    if value == 0:
        raise BadPath("an escaped NUL")
    return bytes((value,)) if value in _UNRESERVED else b"%" + digits.upper()


def split(target: bytes) -> tuple[bytes, bytes]:
    """(normalised path, query with its "?" or b"") of a request target. Raises BadPath.

    Absolute form (RFC 9112 section 3.2.2) loses its scheme and authority: the address asked for is
    never taken from a request.
    """
    absolute = _AUTHORITY.match(target)
    if absolute is not None:
        target = target[absolute.end() :] or b"/"
    target = target.partition(b"#")[0]
    path, mark, query = target.partition(b"?")
    if not path.startswith(b"/"):
        raise BadPath("a path that does not begin with a slash")
    if b"%" in path:
        path = _ESCAPE.sub(_unescape, path)
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment not in (b"", b"."):
            kept.append(segment)
    return b"/" + b"/".join(kept), mark + query
