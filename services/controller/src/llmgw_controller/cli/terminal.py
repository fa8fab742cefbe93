"""What somebody else's program printed, made safe for a terminal: it moves no cursor, rings no bell, hides
nothing.
"""

import codecs

import click

from llmgw_kit.text import visible

#: A line without an end is shown in parts of this many characters rather than kept.
LINE_MOST = 8192


def say(text: str, *, err: bool = False) -> None:
    """One line or more that are no page's. Whoever wrote it, nothing in it moves the cursor."""
    click.echo(visible(text), err=err)


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
        *lines, self._rest = visible(text[: len(text) - len(held)]).split("\n")
        self._rest += held
        while len(self._rest) > LINE_MOST:
            lines.append(self._rest[:LINE_MOST])
            self._rest = self._rest[LINE_MOST:]
        return lines

    def rest(self) -> list[str]:
        """A last line that never ended."""
        rest, self._rest = visible(self._rest + self._decode(b"", final=True)), ""
        return [line for line in rest.split("\n") if line]
