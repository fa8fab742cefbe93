"""Values that anybody may have sent: what of them is of use, and what they are when nothing is."""

import re
from typing import Any

from llmgw_kit.text import shortened, visible

#: Words of others that are shown are cut to this.
WORD_MAX_CHARS = 100
#: Largest count that the wire and the stores carry.
COUNT_MAX = 2**63 - 1


def word(value: Any) -> str | None:
    """What others wrote, fit to be shown; None for all that is no text."""
    if not isinstance(value, str) or not value.strip():
        return None
    return shortened(re.sub(r"\s+", " ", visible(value[: 4 * WORD_MAX_CHARS])).strip(), most=WORD_MAX_CHARS)


def count(value: Any) -> int | None:
    """A count the wire can carry."""
    fine = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX
    return value if fine else None


def kind(value: Any) -> str:
    """For people: what a value is, never the value itself."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "a yes or no"
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < 1e18 else "a number out of bounds"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
