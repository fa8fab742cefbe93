"""Who reads which content now: named before a removal, cut off when the content proves to be rotten.

Rot is found by one process and concerns every process that serves the same store. So a rotten file is
first made unreadable (`condemn`, before it is moved): its inode tells whoever has it open, wherever they
run, and no message can be lost.
"""

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llmgw_kit.errors import Unavailable


@dataclass(frozen=True, eq=False)
class OpenRead:
    """One answer under way. `peer`: the name on its certificate, else its address."""

    sha256: str
    peer: str
    fd: int
    transport: asyncio.Transport


class OpenReads:
    """Of one process."""

    def __init__(self) -> None:
        self._open: set[OpenRead] = set()
        #: Readers cut off because their content proved to be rotten.
        self.cut = 0

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def reading(self, sha256: str, peer: str, fd: int, transport: asyncio.Transport) -> Iterator[None]:
        """For the time of one answer. Raises Unavailable when the file was condemned since it was opened."""
        read = OpenRead(sha256, peer, fd, transport)
        self._open.add(read)
        try:
            # After it is listed: whoever condemns it looks at the list afterwards, so one of the two sees it.
            if is_condemned(fd):
                raise Unavailable(
                    "the content was just found damaged",
                    code="damaged",
                    retry_after_s=5.0,
                    next_steps=["wait: it is fetched again; what became of it: llmgwctl mirror history"],
                )
            yield
        finally:
            self._open.discard(read)

    def peers_of(self, contents: Iterable[str]) -> list[str]:
        """Who reads any of these now, each once."""
        wanted = frozenset(contents)
        return sorted({read.peer for read in self._open if read.sha256 in wanted})

    def cut_condemned(self) -> int:
        """Break off the answers whose content was condemned, by this process or another; returns how many."""
        doomed = [read for read in self._open if is_condemned(read.fd)]
        for read in doomed:
            read.transport.abort()
        self.cut += len(doomed)
        return len(doomed)


def condemn(path: str | os.PathLike[str]) -> None:
    """Mark content as not to be read any more, for those who have it open too. Blocks."""
    os.chmod(path, 0)


def is_condemned(fd: int) -> bool:
    return stat.S_IMODE(os.fstat(fd).st_mode) & 0o400 == 0
