"""Text that others wrote: an engine's last line, a process's name, a node's name for itself.

Postgres stores no NUL, no message carries half a character, and a terminal obeys what it should only show.
"""

import re

#: Colours and cursor moves (ECMA-48, "CSI"): engines colour their logs also where nobody sees it.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_LINE_ENDS = re.compile(r"\r\n?")
#: All controls but tab and line feed, and halves of characters (lone surrogates).
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def printable(text: str, *, most: int | None = None) -> str:
    """For a page and for a store: other controls than tab and line feed are replaced. Of a text longer than
    `most` characters the end is kept, for that is where logs say why."""
    text = _UNPRINTABLE.sub(_REPLACEMENT, _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))
    return text if most is None or len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def storable(text: str) -> str:
    """What no store takes is replaced, everything else stays."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def is_storable(text: str) -> bool:
    """Whether it crosses every wire and is taken by every store as it is."""
    return _UNSTORABLE.search(text) is None


def is_name(text: str, *, most: int) -> bool:
    """One line of printable characters, at most so many, with none of them blank at either end."""
    return 0 < len(text) <= most and text.isprintable() and text == text.strip()
