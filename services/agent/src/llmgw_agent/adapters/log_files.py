"""Reading an engine's log from its end, and on as it grows; it may be cut, replaced or gone at any time.

Everything is bounded: a chunk, the tail, and how far a reader may fall behind. Blocking.
"""

import os
from pathlib import Path
from typing import BinaryIO

from llmgw_agent.core.logs import Chunk

#: Of one read; far below what a message may have.
CHUNK_BYTES = 32 * 1024
#: Of a tail, however many lines are asked for.
TAIL_MOST_BYTES = 1 << 20
#: A follower this far behind is taken to the end: what an engine writes faster than it is read is not
#: kept for it.
BEHIND_MOST_BYTES = 1 << 20
#: So much before the place where reading stopped is looked at again: a file that was cut and has grown
#: past that place meanwhile is another text.
SEEN_BYTES = 64


class LogFile:
    """One log, opened anew at each read so that a replaced file is seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset = 0
        self._seen = b""

    def tail(self, lines: int) -> list[Chunk]:
        """The last lines, in pieces, and reading goes on after them. Where the log was cut lately, lines
        of the part put aside come first. Raises FileNotFoundError."""
        with self._path.open("rb") as file:
            self._inode = os.fstat(file.fileno()).st_ino
            text = _last(file, lines)
            end = file.tell()
            file.seek(max(0, end - SEEN_BYTES))
            self._stop_at(end, file.read(min(end, SEEN_BYTES)))
        chunks = _pieces(text)
        missing = lines - text.count(b"\n")
        aside = self._path.with_suffix(".log.1")
        if missing > 0 and aside.is_file():
            with aside.open("rb") as file:
                older = _last(file, missing)
            if older:
                # Between the copy and the cut the engine may have written more.
                first = Chunk(chunks[0].data, gap=True) if chunks else Chunk(b"", gap=True)
                chunks = [*_pieces(older), first, *chunks[1:]]
        return chunks

    def more(self) -> Chunk | None:
        """What came since, one piece at most; None: nothing. Raises FileNotFoundError."""
        with self._path.open("rb") as file:
            look = os.fstat(file.fileno())
            gap = look.st_ino != self._inode or not self._same(file)
            start = 0 if gap else self._offset
            if look.st_size - start > BEHIND_MOST_BYTES:
                start, gap = look.st_size - CHUNK_BYTES, True
            file.seek(start)
            data = file.read(CHUNK_BYTES)
            self._inode = look.st_ino
            if gap:
                self._seen = b""
            self._stop_at(start + len(data), data)
        return Chunk(data, gap) if data or gap else None

    def _same(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._seen))
        return file.read(len(self._seen)) == self._seen

    def _stop_at(self, offset: int, data: bytes) -> None:
        self._offset = offset
        self._seen = (self._seen + data)[-SEEN_BYTES:]


def _last(file: BinaryIO, lines: int) -> bytes:
    """The last lines of a file, no more than TAIL_MOST_BYTES; the file stands at its end after."""
    end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return b""
    start, text = end, b""
    while start > 0 and len(text) < TAIL_MOST_BYTES and text.count(b"\n") <= lines:
        step = min(CHUNK_BYTES, start, TAIL_MOST_BYTES - len(text))
        start -= step
        file.seek(start)
        text = file.read(step) + text
    file.seek(end)
    # Not splitlines: a carriage return ends no line, and progress bars are made of them.
    kept = [line + b"\n" for line in text.split(b"\n")]
    kept[-1] = kept[-1][:-1]
    if not kept[-1]:
        kept.pop()
    if start > 0 and len(kept) <= lines:
        kept = kept[1:] or kept  # its first line began before what was read
    return b"".join(kept[-lines:])


def _pieces(text: bytes) -> list[Chunk]:
    return [Chunk(text[at : at + CHUNK_BYTES]) for at in range(0, len(text), CHUNK_BYTES)]
