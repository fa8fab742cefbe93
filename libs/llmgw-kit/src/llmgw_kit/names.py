"""The nearest known name to a mistyped one."""

import difflib
from collections.abc import Iterable


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known name that `given` most likely meant, or None when nothing is close."""
    found = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing."""
    name = nearest(given, known)
    return f" (did you mean {name!r}?)" if name else ""
