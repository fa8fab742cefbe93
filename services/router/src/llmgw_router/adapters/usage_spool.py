"""The supervisor's side of the spools: read in their order, deleted when all that they say has been taken.

Nothing is remembered over a restart but the files themselves: what was taken and not deleted is read and
offered again, and the sink knows it by its id. Blocking: called in a thread.
"""

import contextlib
import fcntl
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from llmgw_router.core.usage_lines import Closed, Opened, lines_in, lost_record, record_of
from llmgw_router.ports import UsageBatch
from llmgw_router.relay.spool import LOCK_SUFFIX, NEXT_SUFFIX, SEGMENT_SUFFIX, SPARE_SUFFIX

log = logging.getLogger(__name__)

_PIECE_BYTES = 256 * 1024
#: Records handed over at once.
BATCH = 5000


@dataclass
class _Owner:
    """One worker process, alive or not."""

    #: Read so far, by segment.
    offsets: dict[str, int] = field(default_factory=dict)
    #: What has begun and not ended, as far as was read.
    open: dict[str, Opened] = field(default_factory=dict)
    #: Of its lock, once it is ours: the process is gone.
    lock: int | None = None


class SpoolFolder:
    """All spools of one router. The folder belongs to it alone (StateFolder)."""

    def __init__(self, path: Path, router_id: str) -> None:
        self._path = path
        self._router_id = router_id
        self._owners: dict[str, _Owner] = {}
        # A cancelled task leaves its thread behind, and the next call must not meet it.
        self._one = threading.Lock()

    def read(self) -> UsageBatch:
        """As in the port."""
        with self._one:
            return self._read()

    def _read(self) -> UsageBatch:
        batch = UsageBatch()
        for owner_id, segments in sorted(self._files().items()):
            owner = self._owners.setdefault(owner_id, _Owner())
            # Before the files: who is dead by now has written all that it ever will.
            dead = self._is_dead(owner_id, owner)
            for index, name in enumerate(segments):
                newest = index == len(segments) - 1
                if not self._segment(owner_id, owner, name, batch, last=dead or not newest):
                    batch.more = True
                    return batch
            if dead:
                batch.records += [lost_record(line, self._router_id) for line in owner.open.values()]
                batch.gone.append(owner_id)
        return batch

    def _segment(self, owner_id: str, owner: _Owner, name: str, batch: UsageBatch, *, last: bool) -> bool:
        """Read on in one file. False: the batch is full, and the file has more."""
        at = owner.offsets.get(name, 0)
        fd = os.open(self._path / name, os.O_RDONLY)
        try:
            while len(batch.records) < BATCH:
                data = os.pread(fd, _PIECE_BYTES, at)
                used = 0
                for line, end in lines_in(data, complete=last):
                    used = end
                    if isinstance(line, Closed):
                        owner.open.pop(line.usage_id, None)
                        batch.records.append(record_of(line, self._router_id))
                    else:
                        owner.open[line.usage_id] = line
                at += used
                if not used:
                    break
            else:
                batch.offsets.append((owner_id, name, at))
                return False
        finally:
            os.close(fd)
        batch.offsets.append((owner_id, name, at))
        if last:
            if data.strip(b"\0"):
                log.warning("usage spool %s ends within a line: its process was killed there", name)
            batch.finished.append((owner_id, name))
        return True

    def taken(self, batch: UsageBatch) -> None:
        """As in the port."""
        with self._one:
            self._taken(batch)

    def _taken(self, batch: UsageBatch) -> None:
        for owner_id, name, at in batch.offsets:
            self._owners[owner_id].offsets[name] = at
        for owner_id, name in batch.finished:
            (self._path / name).unlink(missing_ok=True)
            self._owners[owner_id].offsets.pop(name, None)
        for owner_id in batch.gone:
            owner = self._owners.pop(owner_id)
            for suffix in (LOCK_SUFFIX, NEXT_SUFFIX, SPARE_SUFFIX):
                (self._path / f"{owner_id}{suffix}").unlink(missing_ok=True)
            if owner.lock is not None:
                os.close(owner.lock)

    def sync(self) -> None:
        """As in the port."""
        for segments in self._files().values():
            for name in segments:
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(self._path / name, os.O_RDONLY)
                    try:
                        os.fsync(fd)
                    finally:
                        os.close(fd)

    def backlog_bytes(self) -> int:
        """As in the port."""
        return sum((self._path / name).stat().st_size for names in self._files().values() for name in names)

    def close(self) -> None:
        """As in the port."""
        for owner in self._owners.values():
            if owner.lock is not None:
                os.close(owner.lock)
        self._owners.clear()

    def _files(self) -> dict[str, list[str]]:
        """Segments of each process, in the order of their writing; of some there is only the lock left."""
        found: dict[str, list[str]] = {}
        for name in sorted(os.listdir(self._path)):
            if name.endswith(SEGMENT_SUFFIX):
                found.setdefault(name.rpartition("-")[0], []).append(name)
            elif name.endswith(LOCK_SUFFIX):
                found.setdefault(name.removesuffix(LOCK_SUFFIX), [])
        return found

    def _is_dead(self, owner_id: str, owner: _Owner) -> bool:
        if owner.lock is not None:
            return True
        fd = os.open(self._path / f"{owner_id}{LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        owner.lock = fd
        return True
