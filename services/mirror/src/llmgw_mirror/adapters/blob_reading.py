"""One content read whole and hashed, from the disk rather than from memory. All calls block."""

import errno
import hashlib
import os
from pathlib import Path

from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.disk import READ_BYTES

#: Of one call: long enough to be quick, short enough to stop and to pace.
CHUNK_BYTES = 8 << 20


class BlobReading:
    """An open content and the hash of what was read so far. Raises FileNotFoundError when it is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY)
        self._digest = hashlib.sha256()
        self._identity = _identity(os.fstat(self._fd))
        self.size = os.fstat(self._fd).st_size
        self.read_bytes = 0
        # What the page cache has would be compared with itself: rot is on the disk.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def more(self) -> int:
        """Read on; 0 at the end. Raises OSError when the disk cannot give it."""
        count = 0
        while count < CHUNK_BYTES:
            piece = os.pread(self._fd, READ_BYTES, self.read_bytes)
            if not piece:
                break
            self._digest.update(piece)
            self.read_bytes += len(piece)
            count += len(piece)
        return count

    def sha256(self) -> str:
        """Of what was read."""
        return self._digest.hexdigest()

    def wrong(self) -> str | None:
        """After all was read: what is wrong with it. None: it is what its name says."""
        actual = self.sha256()
        return None if actual == self._path.name else f"it hashes to {actual}"

    def lost(self, e: OSError) -> str:
        """After `more` failed: what is wrong with it. Raises Unavailable where that says nothing of it."""
        if e.errno != errno.EIO:
            raise unreadable(self._path.name, e) from e
        # The disk itself says that it has lost these bytes.
        return f"the disk cannot read it after {self.read_bytes} bytes ({e.strerror})"

    def is_there(self) -> bool:
        """Whether the file that was read is still the content: another process may have found it rotten
        too, and a new one may have come in its place."""
        try:
            return _identity(self._path.stat()) == self._identity
        except FileNotFoundError:
            return False

    def proved(self, now: float) -> None:
        """Note in the file's own time that it was right; not synced, since losing it costs a reading."""
        os.utime(self._fd, (now, now))

    def close(self) -> None:
        os.close(self._fd)


def unreadable(sha256: str, e: OSError) -> Unavailable:
    """Whether this content is right is not known now."""
    return Unavailable(
        f"content {sha256} cannot be read now: {e.strerror or e}",
        code="disk_trouble",
        next_steps=["see whether the mirror's disk is there and the mirror may read it, then ask again"],
    )


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
