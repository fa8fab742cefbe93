"""Text that others wrote: an engine's last line, a process's name, a node's name for itself.

Postgres stores no NUL, no message carries half a character, and a terminal obeys what it should only show.
"""

import re
import unicodedata
from collections.abc import Sequence

#: Colours and cursor moves (ECMA-48, "CSI"): engines colour their logs also where nobody sees it.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_LINE_ENDS = re.compile(r"\r\n?")
#: All controls but tab and line feed, and halves of characters (lone surrogates).
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_LONG_WORD = re.compile(r"\S{201,}")
_REPLACEMENT = "\ufffd"
#: Controls (C0 but newline and tab, DEL, C1), what changes the direction of text or joins unseen, and halves
#: of characters, which no terminal can be sent.
_HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)


def printable(text: str, *, most: int | None = None) -> str:
    """For a page and for a store: other controls than tab and line feed are replaced. Of a text longer than
    `most` characters the end is kept, for that is where logs say why."""
    text = _UNPRINTABLE.sub(_REPLACEMENT, _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))
    return text if most is None or len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def visible(text: str) -> str:
    """For a terminal, with nothing lost: controls as `^[`, others as `<U+202E>`. A lone carriage return, of
    progress bars, is a new line; tabs and new lines stay."""
    return _HARMFUL.sub(_shown, text.replace("\r\n", "\n").replace("\r", "\n"))


def in_one_line(text: str) -> str:
    """As `visible`, and a new line or a tab is shown as well: for a cell, which ends with its column."""
    return _HARMFUL.sub(_shown, text).replace("\n", "^J").replace("\t", "^I")


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20 or code == 0x7F:
        return "^" + chr(code ^ 0x40)
    return f"<U+{code:04X}>" if unicodedata.category(found[0]) != "Cc" else f"<{code:02X}>"


def shortened(text: str, *, most: int) -> str:
    """For an answer that quotes what was asked: words nobody types, of more than 200 characters, are cut to
    80, and the whole to `most`."""
    text = _LONG_WORD.sub(lambda found: f"{found[0][:80]}…", text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def joined(names: Sequence[str], *, most: int = 4) -> str:
    """`a, b, c`, shortened with the number left out."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def storable(text: str) -> str:
    """What no store takes is replaced, everything else stays."""
    return _UNSTORABLE.sub(_REPLACEMENT, text)


def is_storable(text: str) -> bool:
    """Whether it crosses every wire and is taken by every store as it is."""
    return _UNSTORABLE.search(text) is None


def is_name(text: str, *, most: int) -> bool:
    """One line of printable characters, at most so many, with none of them blank at either end."""
    return 0 < len(text) <= most and text.isprintable() and text == text.strip()
