"""The store: content once, by its hash; versions as small files that describe themselves.

    store.json                                  its name and the layout's number
    blobs/sha256/ab/abcdef…                     immutable content, 0444; named by what was verified
    versions/<id>/wish.json                     what the version consists of; never changed
    versions/<id>/<file id>.receipt.json        this file is published as that content; written once
    versions/<id>/<file id>.failure.json        why its last fetch failed
    versions/<id>/<file id>.was.json            published before, its content lost since
    versions/<id>/<file id>.cancelled.json      somebody stopped it; gone once it is retried
    parts/                                      see parts.py
    removed/                                    see removals.py
    trash/                                      removed versions on their way out
    damaged/                                    content that was found wrong, unreadable for everybody

Ids are hashes of names: no remote name ever names anything on this disk (H18). Each small file has one
writer, so nothing is read, changed and written back. All calls block; run them in DiskThreads.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from llmgw_kit.clock import Clock, SystemClock
from llmgw_kit.errors import StartupError
from llmgw_mirror.adapters.disk import TEMPORARY, make_folders, sync_folder, write_atomically, write_once
from llmgw_mirror.adapters.open_reads import condemn
from llmgw_mirror.adapters.remembered import Remembered, mark_of
from llmgw_mirror.adapters.stored_json import receipt_of, wish_of
from llmgw_mirror.core.versions import Cancelled, Failure, Receipt, Source, Wish

log = logging.getLogger(__name__)

LAYOUT = 1
READ_BYTES = 1 << 20
TEMPORARY_AGE_S = 3600.0


def version_id(model: str, version: str) -> str:
    """NUL divides: it is in no name."""
    return hashlib.sha256(f"{model}\0{version}".encode()).hexdigest()[:32]


def file_id(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:32]


def git_blob(size_bytes: int) -> "hashlib._Hash":
    """The hash whose digest, after so many bytes of content, is what git calls the file."""
    return hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)


@dataclass(frozen=True)
class Stored:
    """One version as the disk has it; receipts whose content is gone are not among them."""

    wish: Wish
    receipts: dict[str, Receipt]
    failures: dict[str, Failure]
    #: Files that failed before and are tried again: how often in a row.
    retried: dict[str, int]
    #: Receipts, by path, whose content is not there or has another size.
    hollow: dict[str, Receipt]
    #: Files that somebody stopped before they were here.
    cancelled: dict[str, Cancelled] = field(default_factory=dict)
    #: When content was last read and found right, by path, of files that are here.
    proved: dict[str, float] = field(default_factory=dict)
    #: What files had been published as, by path, whose content was lost since.
    was: dict[str, Receipt] = field(default_factory=dict)

    @property
    def verified_at(self) -> float | None:
        """When every byte had been found right; None while a file is not here."""
        return min(self.proved.values()) if len(self.proved) == len(self.wish.files) else None

    def sought(self) -> list[Source]:
        """Files without content, as they are to be fetched. What was here before must come back as it was,
        also where nobody publishes a checksum: a version never changes, and nodes may hold it."""
        return [self._as_it_was(source) for source in self.wish.files if source.path not in self.receipts]

    def missing(self) -> list[Source]:
        """Those of them that have neither failed nor been stopped."""
        resting = self.failures.keys() | self.cancelled.keys()
        return [source for source in self.sought() if source.path not in resting]

    def _as_it_was(self, source: Source) -> Source:
        was = self.was.get(source.path)
        if was is None or source.sha256 is not None or source.git_id is not None:
            return source
        return replace(source, sha256=was.sha256, size_bytes=was.size_bytes)


class Store:
    """Use `open_store`."""

    def __init__(self, root: Path, store_id: str, clock: Clock | None = None) -> None:
        self.root = root
        self._remembered: Remembered[Stored] = Remembered(clock or SystemClock())
        self.store_id = store_id
        self.blobs = root / "blobs" / "sha256"
        self.parts = root / "parts"
        self.versions = root / "versions"
        self.trash = root / "trash"
        self.damaged = root / "damaged"

    def ids(self) -> list[str]:
        """Of every version; one may be gone when it is loaded."""
        found = sorted(name for name in os.listdir(self.versions) if not name.startswith("."))
        if len(self._remembered) > len(found):
            self._remembered.keep(found)
        return found

    def every_version(self) -> list[Stored]:
        """By model and version."""
        found = [stored for vid in self.ids() if (stored := self.load(vid)) is not None]
        return sorted(found, key=lambda stored: (stored.wish.model, stored.wish.version))

    def load(self, vid: str) -> Stored | None:
        """None: no such version, also when it is removed while being read."""
        if (mark := mark_of(f"{self.versions}/{vid}")) is None:
            return None
        known = self._remembered.recall(vid, mark)
        if known is not None and (still := self._still(known)) is not None:
            return still
        stored = self._read(vid)
        if stored is not None and not stored.hollow:  # content comes back without a change of the folder
            self._remembered.note(vid, mark, stored)
        return stored

    def _still(self, known: Stored) -> Stored | None:
        """With its content as it is now; None: some of it is gone or has another size."""
        seen = {path: (self.blob_seen(one.sha256), one.size_bytes) for path, one in known.receipts.items()}
        if any(now is None or now[0] != size for now, size in seen.values()):
            return None
        proved = {path: now[1] for path, (now, _) in seen.items() if now is not None}
        return known if proved == known.proved else replace(known, proved=proved)

    def _read(self, vid: str) -> Stored | None:
        folder = self.versions / vid
        wish = _read_json(folder / "wish.json")
        if wish is None:
            return None
        parsed = wish_of(wish)
        receipts: dict[str, Receipt] = {}
        failures: dict[str, Failure] = {}
        retried: dict[str, int] = {}
        hollow: dict[str, Receipt] = {}
        cancelled: dict[str, Cancelled] = {}
        proved: dict[str, float] = {}
        was: dict[str, Receipt] = {}
        for source in parsed.files:
            receipt = _read_json(folder / f"{file_id(source.path)}.receipt.json")
            if receipt is not None:
                made = receipt_of(receipt)
                seen = self.blob_seen(made.sha256)
                if seen is not None and seen[0] == made.size_bytes:
                    receipts[source.path], proved[source.path] = made, seen[1]
                    continue
                hollow[source.path] = was[source.path] = made
            else:
                # Not with a receipt, which came after: stopped too late is not stopped.
                if (stopped := self.stopped(vid, source.path)) is not None:
                    cancelled[source.path] = stopped
                if (lost := _read_json(folder / f"{file_id(source.path)}.was.json")) is not None:
                    was[source.path] = receipt_of(lost)
            failure = _read_json(folder / f"{file_id(source.path)}.failure.json")
            if failure is None:
                continue
            if failure["retried"]:
                retried[source.path] = failure["count"]
            else:
                failures[source.path] = Failure(failure["error"], failure["at"], failure["count"])
        return Stored(parsed, receipts, failures, retried, hollow, cancelled, proved, was)

    def create(self, wish: Wish, *, beside: Mapping[str, bytes] | None = None) -> bool:
        """Store a new version; False when there is one of that name already. A whole folder appears at
        once, by rename, which fails onto a folder with something in it. `beside`: small files that must not
        come later than the version, by name."""
        vid = version_id(wish.model, wish.version)
        folder = self.versions / f"{TEMPORARY}{secrets.token_hex(8)}"
        folder.mkdir()
        try:
            for name, data in (beside or {}).items():
                write_atomically(folder / name, data)
            write_atomically(folder / "wish.json", _dump({"format": LAYOUT, **asdict(wish)}))
            os.rename(folder, self.versions / vid)
        except OSError as e:
            shutil.rmtree(folder, ignore_errors=True)
            if (self.versions / vid).exists():
                return False
            raise e
        sync_folder(self.versions)
        return True

    def put_receipt(self, vid: str, path: str, receipt: Receipt) -> Receipt:
        """Publish a file; the first receipt stands and is returned. Its failures are forgotten.

        Raises FileNotFoundError when the version was removed meanwhile."""
        target = self.versions / vid / f"{file_id(path)}.receipt.json"
        data = _dump({"path": path, **asdict(receipt), "proof": receipt.proof.value})
        if not write_once(target, data):
            first = _read_json(target)
            if first is None:
                write_atomically(target, data)
            else:
                receipt = receipt_of(first)
        for word in ("failure", "cancelled", "was"):
            (target.parent / f"{file_id(path)}.{word}.json").unlink(missing_ok=True)
        return receipt

    def has_receipt(self, vid: str, path: str) -> bool:
        """Whether this file is published; its content is not looked at."""
        return (self.versions / vid / f"{file_id(path)}.receipt.json").exists()

    def drop_receipt(self, vid: str, path: str, receipt: Receipt) -> None:
        """Its content is gone or not what it was: the file is to be fetched again. Content of the wrong
        size goes too, or it would be taken for the right one by its name."""
        if self.blob_size(receipt.sha256) not in (None, receipt.size_bytes):
            self.set_aside(receipt.sha256)
        # With the receipt any word to stop, which came too late for it, would count again.
        self.resume(vid, path)
        was = _dump({"path": path, **asdict(receipt), "proof": receipt.proof.value})
        write_atomically(self.versions / vid / f"{file_id(path)}.was.json", was)
        (self.versions / vid / f"{file_id(path)}.receipt.json").unlink(missing_ok=True)

    def stop(self, vid: str, path: str, cancelled: Cancelled) -> None:
        """Note that this file is not to be fetched, for every mirror over this store.

        Raises FileNotFoundError when the version was removed meanwhile."""
        target = self.versions / vid / f"{file_id(path)}.cancelled.json"
        write_atomically(target, _dump({"path": path, **asdict(cancelled)}))

    def stopped(self, vid: str, path: str) -> Cancelled | None:
        """None: it may be fetched."""
        value = _read_json(self.versions / vid / f"{file_id(path)}.cancelled.json")
        if value is None:
            return None
        return Cancelled(value["at"], value["asked_by"], value["received_bytes"], value["discard"])

    def resume(self, vid: str, path: str) -> None:
        """It may be fetched again."""
        (self.versions / vid / f"{file_id(path)}.cancelled.json").unlink(missing_ok=True)

    def put_failure(self, vid: str, path: str, failure: Failure, *, retried: bool = False) -> None:
        """`retried`: it is being fetched again, and counts as failed no more.

        Raises FileNotFoundError when the version was removed meanwhile."""
        write_atomically(
            self.versions / vid / f"{file_id(path)}.failure.json",
            _dump({"path": path, **asdict(failure), "retried": retried}),
        )

    def remove(self, vid: str) -> bool:
        """Take a version away at once (rename), its small files after; content stays until collected."""
        gone = self.trash / secrets.token_hex(8)
        try:
            os.rename(self.versions / vid, gone)
        except FileNotFoundError:
            return False
        sync_folder(self.versions)
        shutil.rmtree(gone, ignore_errors=True)
        return True

    def blob(self, sha256: str) -> Path:
        return self.blobs / sha256[:2] / sha256

    def blob_size(self, sha256: str) -> int | None:
        """None: not here. Raises FileNotFoundError while the folder of all content is away: a mount that is
        made anew loses nothing, and nothing is to be fetched again for it."""
        try:
            return self.blob(sha256).stat().st_size
        except OSError:
            self.blobs.stat()
            return None

    def blob_seen(self, sha256: str) -> tuple[int, float] | None:
        """Its size, and when it was last found right (seconds since 1970): the file's own time says so, of
        publication at first. None: not here. Raises as `blob_size` does."""
        try:
            seen = os.stat(f"{self.blobs}/{sha256[:2]}/{sha256}")
        except OSError:
            self.blobs.stat()
            return None
        return seen.st_size, seen.st_mtime

    def referenced(self, *, but: str | None = None) -> set[str]:
        """Hashes that a receipt names or a wish asks for: content that must stay. `but`: a version id that
        does not count."""
        found: set[str] = set()
        for vid in self.ids():
            stored = None if vid == but else self.load(vid)
            if stored is None:
                continue
            found.update(receipt.sha256 for receipt in stored.receipts.values())
            found.update(file.sha256 for file in stored.wish.files if file.sha256 is not None)
        return found

    def unlink_blob(self, sha256: str) -> int:
        """Remove content; open readers finish. Returns the bytes freed, 0 when it was not there."""
        path = self.blob(sha256)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        sync_folder(path.parent)
        return size

    def set_aside(self, sha256: str) -> None:
        """Move content that is not what its name says to damaged/; it counts as absent from here on, and
        whoever has it open is told by its mode. Done twice, by two who found it, it is done once."""
        aside = self.damaged / f"{sha256}.{secrets.token_hex(4)}"
        try:
            os.rename(self.blob(sha256), aside)
        except FileNotFoundError:
            return
        os.utime(aside)
        condemn(aside)
        sync_folder(self.blob(sha256).parent)

    def every_damaged(self) -> list[tuple[Path, os.stat_result]]:
        """What was set aside; its time is that of its setting aside."""
        return [(path, path.stat()) for path in sorted(self.damaged.iterdir())]

    def git_id(self, sha256: str) -> str:
        """Read content whole; returns its id as a git blob. Raises FileNotFoundError."""
        with self.blob(sha256).open("rb") as file:
            digest = git_blob(os.fstat(file.fileno()).st_size)
            while piece := file.read(READ_BYTES):
                digest.update(piece)
        return digest.hexdigest()

    def every_blob(self) -> list[str]:
        return sorted(entry.name for folder in self.blobs.iterdir() for entry in folder.iterdir())

    def sweep(self, *, now: float) -> None:
        """At start and every minute: what crashes left behind. An unfinished small file may be another
        mirror's and be renamed in the next millisecond, so it must be an hour old."""
        for entry in self.trash.iterdir():
            shutil.rmtree(entry, ignore_errors=True)
        for entry in (*self.versions.glob(f"*/{TEMPORARY}*"), *self.parts.glob(f"{TEMPORARY}*")):
            if now - entry.stat().st_mtime > TEMPORARY_AGE_S:
                entry.unlink(missing_ok=True)
        for entry in self.versions.glob(f"{TEMPORARY}*"):
            if now - entry.stat().st_mtime > TEMPORARY_AGE_S:
                shutil.rmtree(entry, ignore_errors=True)

    def disk(self) -> tuple[int, int]:
        """Total and free bytes, as an unprivileged process may use them."""
        usage = shutil.disk_usage(self.root)
        return usage.total, usage.free


def open_store(root: Path, clock: Clock | None = None) -> Store:
    """Open or make the store. Raises StartupError when the folder cannot be used."""
    try:
        for name in ("blobs/sha256", "parts", "versions", "removed", "trash", "damaged"):
            make_folders(root / name)
        described = _read_json(root / "store.json")
        if described is None:
            # The first of several mirrors that start at once names the store.
            write_once(root / "store.json", _dump({"format": LAYOUT, "store_id": secrets.token_hex(8)}))
            described = _read_json(root / "store.json")
        probe = root / "parts" / f"{TEMPORARY}probe-{secrets.token_hex(4)}"
        write_once(probe, b"")
        probe.unlink()
    except OSError as e:
        raise StartupError(
            f"data_dir {root} cannot be used: {e.strerror or e}",
            next_steps=["make it writable for this user, or choose another with --data-dir"],
        ) from None
    if described is None or described.get("format") != LAYOUT or "store_id" not in described:
        raise StartupError(
            f"data_dir {root} holds a store of another layout, this release reads {LAYOUT}",
            next_steps=["start the release that made it, or choose another folder with --data-dir"],
        )
    return Store(root, described["store_id"], clock)


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"


def _read_json(path: Path) -> dict[str, Any] | None:
    """None: not there, or damaged. Everything is written whole (see disk.py), so damage is the disk's;
    it costs what this one file said, not the mirror."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as e:
        log.error("%s is damaged (%s) and counts as absent", path, e)
        return None
    return value if isinstance(value, dict) else None
