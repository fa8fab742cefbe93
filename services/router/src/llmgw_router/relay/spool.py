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
#: Files that are made and not yet begun: by whoever needs one now, and ahead of that by a thread.
NEXT_SUFFIX = ".next"
SPARE_SUFFIX = ".spare"
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
        # Locked before it has its name: whoever sees a lock that is free knows that its process is gone.
        unnamed = self._path(NEXT_SUFFIX)
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unnamed, self._path(LOCK_SUFFIX))
        self._map: mmap.mmap | None = None
        self._at = 0
        self._end = 0
        #: Made ahead: taking room from a disk may take milliseconds, and the loop serves others.
        self._ready: mmap.mmap | None = None
        try:
            self._begin(NEXT_SUFFIX, _made(self._path(NEXT_SUFFIX), size))
        except OSError:
            os.unlink(self._path(LOCK_SUFFIX))
            os.close(self._lock)
            raise

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

    @property
    def wants_next(self) -> bool:
        """The file is half full, and no next one is there."""
        return self._ready is None and 2 * self._at > self._end

    def prepare(self) -> None:
        """Make the next file; for a thread. Raises OSError: it is made when it is needed, then."""
        self._ready = _made(self._path(SPARE_SUFFIX), self._size)

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self._owner}{suffix}"

    def _next_segment(self) -> bool:
        # What runs begins anew in the next file, so that each file can go when its own closings are taken:
        # a stream of an hour must not keep an hour of files.
        running = b"".join(_encode(line) + b"\n" for line in self._running())
        needed = 2 * len(running) + _LONGEST_LINE
        mapped, suffix = self._ready, SPARE_SUFFIX
        try:
            if mapped is None or len(mapped) < needed:
                suffix = NEXT_SUFFIX
                mapped = _made(self._path(suffix), max(self._size, needed))
            else:
                self._ready = None
            self._begin(suffix, mapped)
        except OSError:
            return False
        mapped[: len(running)] = running
        self._at = len(running)
        return True

    def _begin(self, suffix: str, mapped: mmap.mmap) -> None:
        # By its name the reader knows that the one before is complete.
        os.rename(self._path(suffix), self._folder / segment_name(self._owner, self._number))
        self._number += 1
        # The old one stays mapped until its last reference goes; the pages are the kernel's.
        self._map, self._at, self._end = mapped, 0, len(mapped)


def _made(path: Path, size: int) -> mmap.mmap:
    """An empty file with its room on the disk, mapped. Raises OSError, and leaves none behind then."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Without its room a copy into it would end in SIGBUS.
        os.posix_fallocate(fd, 0, size)
        return mmap.mmap(fd, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
