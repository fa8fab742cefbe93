"""Parts: what was received of a file, under a name no other writer uses.

    parts/<key id>.<token>.<holder>.part     the bytes so far
    parts/<key id>.<token>.<holder>.json     what they are the beginning of, and whose they are

The token comes with the lease on the key, so a writer that lost its lease goes on into a file nobody
else reads. File locks play no role: they lie on some network file systems (H4, H5).
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmgw_mirror.adapters.disk import READ_BYTES, DiskThreads, make_folders, sync_folder, write_atomically
from llmgw_mirror.adapters.owners import Owner
from llmgw_mirror.adapters.store import Store, git_blob
from llmgw_mirror.core.content_keys import key_today
from llmgw_mirror.core.transfer import PartSeen

log = logging.getLogger(__name__)

#: Between two syncs; a power cut costs twice as much at most. A crash of the process alone costs nothing.
SYNC_EVERY_BYTES = 128 << 20
#: Hashed and written in one go, so that the writing finds it in the processor's cache.
SLICE_BYTES = 256 << 10


@dataclass(frozen=True)
class Label:
    """What stands beside a part."""

    key: str
    owner: Owner | None
    validator: str | None = None
    total_bytes: int | None = None
    #: So many bytes are on the disk for certain.
    synced_bytes: int = 0
    #: The writer has closed the part and will not touch it again.
    released: bool = False
    #: Hash of the whole, known before publication begins.
    sha256: str | None = None

    def dump(self) -> bytes:
        return json.dumps({**asdict(self), "owner": self.owner and self.owner.as_json()}).encode()


def read_label(part: Path) -> Label | None:
    """None: it has none, or a damaged one; such bytes are of no use."""
    try:
        value: dict[str, Any] = json.loads(part.with_suffix(".json").read_text())
        owner = Owner.from_json(value["owner"])
        return Label(**{**value, "key": key_today(value["key"]), "owner": owner})
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remove_part(part: Path) -> None:
    """With its label."""
    # The bytes first: a label without bytes is forgotten, bytes without a label would never be.
    part.unlink(missing_ok=True)
    part.with_suffix(".json").unlink(missing_ok=True)


class Part:
    """One open part with a running hash. Its calls are made one after the other, by one task."""

    def __init__(self, store: Store, threads: DiskThreads, path: Path, label: Label) -> None:
        self._store = store
        self._threads = threads
        self._path = path
        self._label = label
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._digest = hashlib.sha256()
        self._hashed = 0
        self.length = os.fstat(self._fd).st_size
        self._syncing: asyncio.Task[None] | None = None
        #: As far as a sync was begun.
        self._sync_asked = self.length
        #: A sync failed: the system may have dropped what it could not write, and says so once.
        self._doubtful = False
        #: Whether the bytes came by more than one transfer.
        self.spliced = False

    @property
    def seen(self) -> PartSeen:
        return PartSeen(self.length, self._label.validator, self._label.total_bytes)

    async def prove(self) -> None:
        """Hash what an earlier transfer left. No hash state is kept on disk: re-reading also shows
        whether the bytes can still be read."""
        while self._hashed < self.length:
            await self._threads.run(self._hash_more)
            self.spliced = True

    def _hash_more(self) -> None:
        # 64 pieces a call: enough to be quick, few enough to be cancelled soon.
        for _ in range(64):
            wanted = min(READ_BYTES, self.length - self._hashed)
            piece = os.pread(self._fd, wanted, self._hashed)
            if not piece:
                return
            self._digest.update(piece)
            self._hashed += len(piece)
        self._forget_pages(0, min(self._hashed, self._label.synced_bytes))

    async def restart(self) -> None:
        """Drop the bytes. The file is ours alone, so it is cut rather than replaced."""

        def act() -> None:
            self._write_label(
                replace(self._label, validator=None, total_bytes=None, synced_bytes=0, sha256=None)
            )
            os.ftruncate(self._fd, 0)

        await self._settle()
        await self._threads.run(act)
        self._digest, self._hashed, self.length, self.spliced = hashlib.sha256(), 0, 0, False
        self._sync_asked, self._doubtful = 0, False

    async def begin(self, *, validator: str | None, total_bytes: int | None) -> None:
        """Note what the bytes to come belong to, before they come."""
        self.spliced = self.spliced or self.length > 0
        label = replace(self._label, validator=validator, total_bytes=total_bytes)
        if label != self._label:
            await self._settle()
            label = replace(self._label, validator=validator, total_bytes=total_bytes)
            await self._threads.run(self._write_label, label)

    async def append(self, pieces: Sequence[bytes]) -> None:
        """Hash and write at the end. Raises OSError, perhaps of what was written before."""
        await self._threads.run(self._append, pieces)
        if self.length - self._sync_asked >= SYNC_EVERY_BYTES:
            # Beside the writing of what comes next; so that it cannot fall behind, one at a time.
            await self._settle()
            self._sync_asked = self.length
            self._syncing = asyncio.create_task(self._sync_behind(self.length), name="sync")

    def _append(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                count = os.pwrite(self._fd, view[:SLICE_BYTES], self.length)
                # Hashed as far as written: after a full disk both tell the same length.
                self._digest.update(view[:count])
                self.length += count
                self._hashed = self.length
                view = view[count:]

    async def _sync_behind(self, length: int) -> None:
        def act() -> None:
            before = self._label.synced_bytes
            self._sync(length)
            self._forget_pages(before, length)

        await self._threads.run(act)

    async def _settle(self) -> None:
        """No sync is under way. Raises OSError when the last one failed."""
        if self._syncing is not None:
            await asyncio.shield(self._syncing)
            self._syncing = None

    def _forget_pages(self, start: int, end: int) -> None:
        """Of what is on the disk for certain: a fetch larger than the memory must not drive out what nodes
        read now. What they read of this one is read from the disk once, for all of them."""
        if end > start:
            os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    async def seal(self) -> str:
        """Sync and note the hash, the last step before publication; returns it."""
        await self.prove()
        await self._settle()
        sha256 = self._digest.hexdigest()

        def act() -> None:
            self._sync(self.length)
            self._write_label(replace(self._label, sha256=sha256))

        await self._threads.run(act)
        return sha256

    async def git_id(self) -> str:
        """Of the bytes here as a git blob. By a second reading: its hash begins with the length, which may
        be known at the end only, and files with no better proof are small."""
        digest = git_blob(self.length)
        at = 0

        def more() -> int:
            for offset in range(at, min(at + 64 * READ_BYTES, self.length), READ_BYTES):
                digest.update(os.pread(self._fd, min(READ_BYTES, self.length - offset), offset))
            return at + 64 * READ_BYTES

        while at < self.length:
            at = await self._threads.run(more)
        return digest.hexdigest()

    async def publish(self, sha256: str) -> None:
        """Move the sealed bytes to their place among the content; the label stays until `forget`, so that
        a crash in between finds the content again."""

        def act() -> None:
            target = self._store.blob(sha256)
            make_folders(target.parent)
            os.fchmod(self._fd, 0o444)
            os.close(self._fd)
            self._fd = -1
            if target.exists() and target.stat().st_size == self.length:
                self._path.unlink()
            else:
                os.rename(self._path, target)
            sync_folder(target.parent)

        await self._threads.run(act)

    async def keep(self) -> None:
        """Let go; the bytes stay for whoever goes on."""

        def act() -> None:
            if self._fd < 0:
                return
            try:
                if not self._doubtful:
                    self._sync(self.length)
            except OSError as e:
                # A full or failing disk, told already by what made us let go.
                log.warning("%s: %s; after a power cut less of it may be there", self._path.name, e)
            os.close(self._fd)
            self._fd = -1
            # Without an owner nothing is trusted but what was synced before.
            owner = None if self._doubtful else self._label.owner
            try:
                self._write_label(replace(self._label, owner=owner, released=True))
            except OSError as e:
                log.warning("%s stays marked as being written: %s", self._path.name, e)

        await self._quiet()
        await self._threads.run(act)

    async def discard(self) -> None:
        """Let go and remove."""

        def act() -> None:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            remove_part(self._path)

        await self._quiet()
        await self._threads.run(act)

    async def _quiet(self) -> None:
        """As `_settle`, for those who let go: what went wrong is known by `_doubtful`."""
        with suppress(OSError):
            await self._settle()

    def _sync(self, length: int) -> None:
        try:
            os.fsync(self._fd)
        except OSError:
            self._doubtful = True
            raise
        self._write_label(replace(self._label, synced_bytes=length))

    def _write_label(self, label: Label) -> None:
        write_atomically(self._path.with_suffix(".json"), label.dump())
        self._label = label
