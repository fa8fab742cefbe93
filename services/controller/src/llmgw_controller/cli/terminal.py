"""What somebody else's program printed, made safe for a terminal: it moves no cursor, rings no bell, hides
nothing. Pure.
"""

import codecs
import re
import unicodedata

#: A line without an end is shown in parts of this many characters rather than kept.
LINE_MOST = 8192

#: Controls (C0 but newline and tab, DEL, C1) and what changes the direction of text or joins unseen.
_HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def printable(text: str) -> str:
    """Controls as `^[`, others as `<U+202E>`. A lone carriage return, of progress bars, is a new line."""
    return _HARMFUL.sub(_shown, text.replace("\r\n", "\n").replace("\r", "\n"))


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20 or code == 0x7F:
        return "^" + chr(code ^ 0x40)
    return f"<U+{code:04X}>" if unicodedata.category(found[0]) != "Cc" else f"<{code:02X}>"


class Lines:
    """Bytes of one log to lines, whole ones; a character cut between two pieces is put together."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def take(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        text = self._rest + self._decode(data)
        # Kept for the next piece: it may be half of "\r\n".
        held = text[-1:] if text.endswith("\r") else ""
        *lines, self._rest = printable(text[: len(text) - len(held)]).split("\n")
        self._rest += held
        while len(self._rest) > LINE_MOST:
            lines.append(self._rest[:LINE_MOST])
            self._rest = self._rest[LINE_MOST:]
        return lines

    def rest(self) -> list[str]:
        """A last line that never ended."""
        rest, self._rest = printable(self._rest + self._decode(b"", final=True)), ""
        return [line for line in rest.split("\n") if line]
