"""Parts: what was received of a file, under a name no other writer uses.

    parts/<key id>.<token>.<holder>.part     the bytes so far
    parts/<key id>.<token>.<holder>.json     what they are the beginning of, and whose they are

The token comes with the lease on the key, so a writer that lost its lease goes on into a file nobody
else reads. File locks play no role: they lie on some network file systems (H4, H5).

A part is handed on by rename when its writer has let go of it or is provably gone, and by copy
otherwise, since a writer that only lost its lease may still hold it open.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmgw_mirror.adapters.disk import TEMPORARY, DiskThreads, make_folders, sync_folder, write_atomically
from llmgw_mirror.adapters.owners import Owner, provably_gone, same_boot, this_process
from llmgw_mirror.adapters.store import Store, git_blob
from llmgw_mirror.core.content_keys import key_id, key_today
from llmgw_mirror.core.transfer import PartSeen

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
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


class Part:
    """One open part with a running hash. Its calls are made one after the other, by one task."""

    def __init__(self, shelf: "Shelf", path: Path, label: Label) -> None:
        self._shelf = shelf
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
            await self._shelf.threads.run(self._hash_more)
            self.spliced = True

    def _hash_more(self) -> None:
        # 64 pieces a call: enough to be quick, few enough to be cancelled soon.
        for _ in range(64):
            wanted = min(PIECE_BYTES, self.length - self._hashed)
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
        await self._shelf.threads.run(act)
        self._digest, self._hashed, self.length, self.spliced = hashlib.sha256(), 0, 0, False
        self._sync_asked, self._doubtful = 0, False

    async def begin(self, *, validator: str | None, total_bytes: int | None) -> None:
        """Note what the bytes to come belong to, before they come."""
        self.spliced = self.spliced or self.length > 0
        label = replace(self._label, validator=validator, total_bytes=total_bytes)
        if label != self._label:
            await self._settle()
            label = replace(self._label, validator=validator, total_bytes=total_bytes)
            await self._shelf.threads.run(self._write_label, label)

    async def append(self, pieces: Sequence[bytes]) -> None:
        """Hash and write at the end. Raises OSError, perhaps of what was written before."""
        await self._shelf.threads.run(self._append, pieces)
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

        await self._shelf.threads.run(act)

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

        await self._shelf.threads.run(act)
        return sha256

    async def git_id(self) -> str:
        """Of the bytes here as a git blob. By a second reading: its hash begins with the length, which may
        be known at the end only, and files with no better proof are small."""
        digest = git_blob(self.length)
        at = 0

        def more() -> int:
            for offset in range(at, min(at + 64 * PIECE_BYTES, self.length), PIECE_BYTES):
                digest.update(os.pread(self._fd, min(PIECE_BYTES, self.length - offset), offset))
            return at + 64 * PIECE_BYTES

        while at < self.length:
            at = await self._shelf.threads.run(more)
        return digest.hexdigest()

    async def publish(self, sha256: str) -> None:
        """Move the sealed bytes to their place among the content; the label stays until `forget`, so that
        a crash in between finds the content again."""

        def act() -> None:
            target = self._shelf.store.blob(sha256)
            make_folders(target.parent)
            os.fchmod(self._fd, 0o444)
            os.close(self._fd)
            self._fd = -1
            if target.exists() and target.stat().st_size == self.length:
                self._path.unlink()
            else:
                os.rename(self._path, target)
            sync_folder(target.parent)

        await self._shelf.threads.run(act)

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
        await self._shelf.threads.run(act)

    async def discard(self) -> None:
        """Let go and remove."""

        def act() -> None:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            _remove(self._path)

        await self._quiet()
        await self._shelf.threads.run(act)

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


class Shelf:
    """All parts of one store, for one mirror process."""

    def __init__(self, store: Store, threads: DiskThreads, *, holder: str) -> None:
        self.store = store
        self.threads = threads
        self._holder = holder
        self._me = this_process()

    async def take(self, key: str, token: int) -> Part:
        """The part of this key, with what an earlier writer left of it. The caller holds the key's lease
        under `token`."""
        path = self.store.parts / f"{key_id(key)}.{token}.{self._holder}.part"
        return await self.threads.run(self._take, key, path)

    def _take(self, key: str, path: Path) -> Part:
        found = [
            (p, label) for p in self._parts_of(key) if (label := read_label(p)) is not None and p != path
        ]
        found = [(p, label) for p, label in found if label.key == key and p.exists()]
        found.sort(key=lambda one: _trusted(*one), reverse=True)
        label = Label(key, self._me)
        if found:
            best, old = found[0]
            length = _trusted(best, old)
            label = replace(
                old, owner=self._me, released=False, sha256=None, synced_bytes=min(old.synced_bytes, length)
            )
            gone = old.released or provably_gone(old.owner)
            if not gone:
                label = replace(label, synced_bytes=0)
            # The label first: a part without one belongs to nobody, and is collected.
            write_atomically(path.with_suffix(".json"), label.dump())
            if gone:
                # Two names for a moment: a crash in between loses neither bytes nor label.
                os.link(best, path)
            else:
                _copy(best, path, length)
            os.truncate(path, length)
            for other, _ in found:
                # Removing is safe even under a writer: it goes on into a file without a name, and its
                # publication fails. Only taking its bytes needs proof.
                _remove(other)
        else:
            write_atomically(path.with_suffix(".json"), label.dump())
        return Part(self, path, label)

    async def published_before_crash(self, key: str) -> tuple[str, int] | None:
        """Content of this key that reached its place just before its writer died: (sha256, bytes)."""

        def act() -> tuple[str, int] | None:
            for path in self._parts_of(key):
                label = read_label(path)
                if label is None or label.key != key or label.sha256 is None or path.exists():
                    continue
                size = self.store.blob_size(label.sha256)
                if size is not None:
                    return label.sha256, size
            return None

        return await self.threads.run(act)

    async def forget(self, key: str) -> None:
        """After publication: what is left of this key's parts."""

        def act() -> None:
            for path in self._parts_of(key):
                _remove(path)

        await self.threads.run(act)

    async def everything(self) -> dict[Path, str | None]:
        """Every part with its key; None: its label is gone.

        To collect garbage, list first and ask second what is wanted and live: a part made in between
        is not in the list, and one in the list had its wish before it."""

        def act() -> dict[Path, str | None]:
            paths = {
                p.with_suffix(".part")
                for p in self.store.parts.iterdir()
                if p.suffix in (".part", ".json") and not p.name.startswith(TEMPORARY)
            }
            return {path: label.key if (label := read_label(path)) else None for path in sorted(paths)}

        return await self.threads.run(act)

    async def lengths(self) -> dict[str, int]:
        """By key: the bytes that are here of it."""

        def act() -> dict[str, int]:
            found: dict[str, int] = {}
            for path in self.store.parts.glob("*.part"):
                label = read_label(path)
                if label is not None and path.exists():
                    found[label.key] = max(found.get(label.key, 0), path.stat().st_size)
            return found

        return await self.threads.run(act)

    async def sealed(self) -> set[str]:
        """Hashes of parts that were verified and are on their way to be published."""

        def act() -> set[str]:
            labels = [read_label(path) for path in self.store.parts.glob("*.json")]
            return {label.sha256 for label in labels if label is not None and label.sha256 is not None}

        return await self.threads.run(act)

    async def remove(self, paths: Iterable[Path]) -> int:
        """Returns the bytes freed."""
        doomed = list(paths)

        def act() -> int:
            freed = 0
            for path in doomed:
                freed += path.stat().st_size if path.exists() else 0
                _remove(path)
            return freed

        return await self.threads.run(act)

    def _parts_of(self, key: str) -> list[Path]:
        return sorted({p.with_suffix(".part") for p in self.store.parts.glob(f"{key_id(key)}.*")})


def read_label(part: Path) -> Label | None:
    """None: it has none, or a damaged one; such bytes are of no use."""
    try:
        value: dict[str, Any] = json.loads(part.with_suffix(".json").read_text())
        owner = Owner.from_json(value["owner"])
        return Label(**{**value, "key": key_today(value["key"]), "owner": owner})
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _trusted(part: Path, label: Label) -> int:
    """Bytes that are what was received: all of them unless the machine went down since, which may leave
    a right length over blocks that were never written."""
    length = part.stat().st_size
    return length if same_boot(label.owner) else min(length, label.synced_bytes)


def _copy(source: Path, target: Path, length: int) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        left = length
        while left and (piece := reader.read(min(PIECE_BYTES, left))):
            writer.write(piece)
            left -= len(piece)


def _remove(part: Path) -> None:
    # The bytes first: a label without bytes is forgotten, bytes without a label would never be.
    part.unlink(missing_ok=True)
    part.with_suffix(".json").unlink(missing_ok=True)
