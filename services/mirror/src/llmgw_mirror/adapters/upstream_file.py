"""Files of this machine as an upstream: for labs, and for weights brought in on a disk.

Only below the folders an operator allowed. The path is resolved and the opened file is asked again
where it really lies, so a link that changes in between leads nowhere.
"""

import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from llmgw_mirror.adapters.disk import READ_BYTES, DiskThreads
from llmgw_mirror.core.headers import ContentRange
from llmgw_mirror.core.transfer import Head
from llmgw_mirror.ports import Interrupted, Refused


@dataclass
class _Answer:
    head: Head
    fd: int
    offset: int
    threads: DiskThreads

    async def body(self) -> AsyncIterator[bytes]:
        while True:
            at = self.offset
            try:
                piece = await self.threads.run(os.pread, self.fd, READ_BYTES, at)
            except OSError as e:
                raise Interrupted(f"reading the source failed at byte {at}: {e.strerror or e}") from e
            if not piece:
                return
            self.offset += len(piece)
            yield piece


class FileUpstream:
    """`roots` are the allowed folders; without any, every file URL is refused."""

    remote = False

    def __init__(self, roots: Sequence[Path], threads: DiskThreads) -> None:
        self._roots = tuple(roots)
        self._threads = threads

    @asynccontextmanager
    async def open(self, url: str, *, offset: int, validator: str | None) -> AsyncIterator[_Answer]:
        """See ports.Upstream."""
        fd = await self._threads.run(self._open, url)
        try:
            head, start = _head(fd, offset, validator)
            yield _Answer(head, fd, start, self._threads)
        finally:
            os.close(fd)

    def _open(self, url: str) -> int:
        path = Path(unquote(urlsplit(url).path))
        if not self._roots:
            raise Refused(
                f"{path} is refused: no folder is open to file URLs; name some in file_roots",
                next_steps=["set file_roots to the folders that may be read"],
            )
        # A missing root is skipped: the error below then names what is allowed.
        roots = [root.resolve() for root in self._roots]
        self._inside(path.resolve(), path, roots)
        try:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as e:
            raise Refused(
                f"{path} cannot be read: {e.strerror}",
                next_steps=["see whether it exists and the mirror may read it"],
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Refused(f"{path} is not a regular file", next_steps=["name the file itself"])
            self._inside(Path(os.readlink(f"/proc/self/fd/{fd}")), path, roots)
        except Refused:
            os.close(fd)
            raise
        return fd

    def _inside(self, real: Path, path: Path, roots: Sequence[Path]) -> None:
        if not any(real.is_relative_to(root) for root in roots):
            allowed = ", ".join(str(root) for root in self._roots)
            leads = "" if real == path else f" leads to {real}, which"
            raise Refused(
                f"{path}{leads} is outside the folders open to file URLs ({allowed})",
                next_steps=["move the file there, or add its folder to file_roots"],
            )


def _head(fd: int, offset: int, validator: str | None) -> tuple[Head, int]:
    """The answer's head and where its body begins, by the rules of an HTTP server."""
    found = os.fstat(fd)
    size = found.st_size
    tag = f'"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"'
    if offset == 0 or (validator is not None and validator != tag):
        return Head(200, content_length=size, validator=tag), 0
    if offset >= size:
        return Head(416, content_range=ContentRange(None, None, size), validator=tag), size
    span = ContentRange(offset, size - 1, size)
    return Head(206, content_length=size - offset, content_range=span, validator=tag), offset
