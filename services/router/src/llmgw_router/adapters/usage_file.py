"""Usage into a file of JSON lines, which is renamed when it is long: for a router without a database.

Each record once: what a killed supervisor had written and not deleted from the spools comes again, and is
known by its id from what the newest two files hold.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from llmgw_kit.errors import Unavailable
from llmgw_router.core.usage_lines import UsageRecord

log = logging.getLogger(__name__)

ROTATE_BYTES = 64 * 1024 * 1024
#: Older files than so many are deleted.
KEPT = 8


class _Id(msgspec.Struct):
    usage_id: str


_id = msgspec.json.Decoder(_Id).decode


class FileUsage:
    """UsageSink on `path`, `path`.1 (the one before), and so on."""

    def __init__(self, path: Path, *, rotate_bytes: int = ROTATE_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._kept = kept
        #: Ids of a former life, until it is known that none comes again. None: not read yet.
        self._known: set[str] | None = None
        #: Size at which it is renamed; later than that after each attempt that failed.
        self._rotate_at = rotate_bytes
        self._stuck = False

    async def put(self, records: Sequence[UsageRecord]) -> None:
        """As in the port. In a thread: the first reads two whole files, and each waits for the disk."""
        await asyncio.to_thread(self._put, records)

    def _put(self, records: Sequence[UsageRecord]) -> None:
        try:
            if self._known is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._mend()
                self._known = set().union(*map(self._ids, (self._path, self._numbered(0), self._numbered(1))))
            fresh = [one for one in records if one.usage_id not in self._known] if self._known else records
            if fresh:
                self._append(b"".join(msgspec.json.encode(one) + b"\n" for one in fresh))
        except OSError as e:
            raise Unavailable(f"usage cannot be written to {self._path}: {e.strerror or e}") from e

    def settled(self) -> None:
        """As in the port."""
        if self._known:
            self._known.clear()

    async def close(self) -> None:
        """Nothing stays open."""

    def _append(self, data: bytes) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            before = os.fstat(fd).st_size
            try:
                written = os.write(fd, data)
                while written < len(data):
                    written += os.write(fd, data[written:])
                # The spool's files are deleted after this, and a power cut must not take both.
                os.fdatasync(fd)
            except OSError:
                # All or nothing: they are offered again. Until that is so, what is there is looked up.
                known, self._known = self._known, None
                os.ftruncate(fd, before)
                self._known = known
                raise
        finally:
            os.close(fd)
        if before + len(data) >= self._rotate_at:
            self._try_to_rotate(before + len(data))

    def _try_to_rotate(self, size: int) -> None:
        # The rows are written: that the file cannot be renamed must not have them offered again.
        try:
            self._rotate()
        except OSError as e:
            if not self._stuck:
                log.error(
                    "%s cannot be renamed, and grows on: %s; mount its folder, not the file", self._path, e
                )
            self._stuck, self._rotate_at = True, size + self._rotate_bytes // 64
        else:
            self._stuck, self._rotate_at = False, self._rotate_bytes

    def _rotate(self) -> None:
        # First of all, since it is what fails; .0 is there only from here to the end, or after a kill.
        if not self._numbered(0).exists():
            self._path.rename(self._numbered(0))
        for number in range(self._kept, -1, -1):
            old = self._numbered(number)
            if number == self._kept:
                old.unlink(missing_ok=True)
            elif old.exists():
                old.rename(self._numbered(number + 1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _mend(self) -> None:
        """Cut a last line that a killed process has left unfinished: its record is still in the spool."""
        if not self._path.exists():
            return
        with self._path.open("rb+") as file:
            data = file.read()
            if data and not data.endswith(b"\n"):
                file.truncate(data.rfind(b"\n") + 1)

    @staticmethod
    def _ids(path: Path) -> set[str]:
        if not path.exists():
            return set()
        found = set()
        with path.open("rb") as file:
            for line in file:
                try:
                    found.add(_id(line).usage_id)
                except msgspec.MsgspecError:
                    log.warning("%s has a line that is no usage record; it is left as it is", path)
        return found
