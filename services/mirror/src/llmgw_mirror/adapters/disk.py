"""Writing so that a crash at any instruction leaves the old or the new, and threads to do it in.

A rename is durable once its folder is synced, a file once it is synced itself; both, in this order.
"""

import asyncio
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from llmgw_kit.errors import Unavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Of files being written; what a crash leaves of them is swept when it is an hour old.
TEMPORARY = ".tmp-"

#: Of one read of a file that goes through this process.
READ_BYTES = 1 << 20

_numbers = itertools.count()


class DiskThreads:
    """Threads for the disk alone: a slow disk must not hold up name look-ups, nor they it."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="disk")

    async def run(self, action: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run to its end even if the caller is cancelled: a write under way must not outlive its file
        descriptor."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, action, *args)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # Bounded by one disk operation; the result is of no interest any more.
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()
            raise

    async def act(self, what: str, action: Callable[[*Ts], T], *args: *Ts) -> T:
        """Like `run`, for callers who can only be told: an OSError becomes Unavailable, saying that `what`
        did not happen."""
        try:
            return await self.run(action, *args)
        except OSError as e:
            raise Unavailable(
                f"{what}: the disk says {e.strerror or e}",
                code="disk_trouble",
                next_steps=["see whether the mirror's disk is full, read-only or failing"],
            ) from e

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def sync_folder(folder: Path) -> None:
    """Make renames, links and removals in this folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path`; the reader sees all of the old or all of the new. Readable for this user alone, unless
    told otherwise: a wish holds URLs, and a signed URL is a credential."""
    temporary = _temporary(path, data, mode)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_once(path: Path, data: bytes) -> bool:
    """Create `path`, or return False when somebody did already. Atomic across processes: link(2) fails
    if the name exists, on NFS too."""
    temporary = _temporary(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    sync_folder(path.parent)
    return True


def make_folders(path: Path) -> None:
    """Like mkdir -p, durably."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def _temporary(path: Path, data: bytes, mode: int = 0o600) -> Path:
    temporary = path.parent / f"{TEMPORARY}{os.getpid()}-{next(_numbers)}-{path.name[:40]}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    return temporary
