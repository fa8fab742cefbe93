"""What people wrote, as an error shows it, and numbers that fit every wire and every store."""

import math
from typing import Any

from pydantic import BeforeValidator

#: Characters of what was given that an error shows.
SHOWN_MOST = 100


def shown(given: Any) -> str:
    """Quoted, on one line, and no longer than it can be read."""
    text = ascii(given[:SHOWN_MOST]) if isinstance(given, str) and not given.isprintable() else None
    if text is None:
        text = repr(given[:SHOWN_MOST] if isinstance(given, str) else given)
    more = isinstance(given, str) and len(given) > SHOWN_MOST
    return f"{text[:SHOWN_MOST]}…" if more or len(text) > 4 * SHOWN_MOST else text


def bounded(
    least: float, most: float, most_said: str | None = None, *, whole: bool = True, above: bool = False
) -> BeforeValidator:
    """A number from `least` (or, if `above`, more than it) to `most`; a wrong one is told what was expected.

    Without an upper bound a number is taken that no message and no column can carry."""
    kind = "a whole number" if whole else "a number"
    low = f"above {least:,}" if above else f"from {least:,}"
    upto = f"{most:,}" + (f" ({most_said})" if most_said else "")
    expected = f"expected {kind} {low} {'and at most' if above else 'to'} {upto}"

    def check(given: Any) -> Any:
        fits = isinstance(given, int if whole else int | float) and not isinstance(given, bool)
        if not fits or math.isnan(given):
            raise ValueError(f"{expected}, got {shown(given)}{_quoted(given)}")
        if not (least < given if above else least <= given) or given > most:
            raise ValueError(f"{expected}, got {shown(given)}")
        return given

    return BeforeValidator(check)


def _quoted(given: Any) -> str:
    return ", which is a text" if isinstance(given, str) else ""
