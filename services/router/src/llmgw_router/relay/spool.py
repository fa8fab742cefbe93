"""A worker's spool of usage: lines written into mapped files, where they outlive the process at once.

A line is a copy into the page cache: no system call on the data path, and a killed worker has lost nothing
that it had answered. Files have a fixed size, taken from the disk when they are made, so that a full disk is
an error then and not a fault in the middle of a copy. The supervisor reads and deletes them (usage.py); a
lock that ends with this process tells it, or its successor, when nothing more will come.
"""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from llmgw_router.core.usage_lines import Line, Opened

SEGMENT_BYTES = 4 * 1024 * 1024
#: Shorter than any segment; names are bounded elsewhere, this is the last word.
_LONGEST_LINE = 64 * 1024
_encode = msgspec.json.Encoder().encode

LOCK_SUFFIX = ".lock"
SEGMENT_SUFFIX = ".usage"


def segment_name(owner: str, number: int) -> str:
    """Sorts in the order of writing."""
    return f"{owner}-{number:010d}{SEGMENT_SUFFIX}"


class Spool:
    """One per worker process. `owner` is unique among the processes of all routers."""

    def __init__(
        self, folder: Path, owner: str, running: Callable[[], Iterable[Opened]], *, size: int = SEGMENT_BYTES
    ) -> None:
        """`running` gives the opening lines of what runs now. Raises OSError."""
        self._folder = folder
        self._owner = owner
        self._running = running
        self._size = size
        self._number = 0
        self._lock = os.open(folder / f"{owner}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._map: mmap.mmap | None = None
        self._at = 0
        self._end = 0
        self._begin_segment(size)

    def append(self, line: Line) -> bool:
        """Write one line. False: there is no room on the disk, and it is lost."""
        data = _encode(line) + b"\n"
        end = self._at + len(data)
        if end > self._end:
            if len(data) > _LONGEST_LINE or not self._next_segment():
                return False
            end = self._at + len(data)
        assert self._map is not None
        self._map[self._at : end] = data
        self._at = end
        return True

    def _next_segment(self) -> bool:
        # What runs begins anew in the next file, so that each file can go when its own closings are taken:
        # a stream of an hour must not keep an hour of files.
        running = b"".join(_encode(line) + b"\n" for line in self._running())
        try:
            self._begin_segment(max(self._size, 2 * len(running) + _LONGEST_LINE))
        except OSError:
            return False
        assert self._map is not None
        self._map[: len(running)] = running
        self._at = len(running)
        return True

    def _begin_segment(self, size: int) -> None:
        path = self._folder / segment_name(self._owner, self._number)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            mapped = mmap.mmap(fd, size)
        except OSError:
            # A file without its room would end in SIGBUS; the next try makes it anew.
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        # The old one stays mapped until its last reference goes; the pages are the kernel's.
        self._number += 1
        self._map, self._at, self._end = mapped, 0, size
