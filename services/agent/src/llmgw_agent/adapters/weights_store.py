"""Weights on this node's disk. A version is published by one rename, or is not there.

weights/<model>/<version>/manifest.json   names, sizes, sha256, and how each file looked when it matched
weights/<model>/<version>/files/...       what the engine opens
weights/.partial/<model>/<version>/...    on its way; survives a restart
weights/.trash/...                        on its way out
"""

import hashlib
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmgw_agent.adapters.files import read_json, sync_folder, write_json
from llmgw_agent.core.paths import file_path, folder_name
from llmgw_agent.core.weights import Held, Listing, WeightsFile, WeightsKey, parse_listing
from llmgw_kit.errors import InvalidRequest, NotFound, Unavailable

log = logging.getLogger(__name__)

#: Bytes hashed and written at a time: large enough that the work per call does not show.
CHUNK_BYTES = 4 << 20


class WeightsStore:
    """All blocking: call on a thread what touches file contents."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = itertools.count()
        #: Of published versions, with how the manifest looked when it was read; for `find`.
        self._contents: dict[Path, tuple[list[int] | None, dict[str, tuple[Path, list[int]]]]] = {}
        #: Two removals at once must not delete the same tree.
        self._emptying = threading.Lock()
        for name in (".partial", ".trash"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def _place(self, key: WeightsKey, under: Path) -> Path:
        return under / folder_name(key.model, what="model") / folder_name(key.version, what="version")

    def folder(self, key: WeightsKey) -> Path:
        """Where the published version lies."""
        return self._place(key, self.root)

    def partial(self, key: WeightsKey) -> Path:
        """Where it is put together."""
        return self._place(key, self.root / ".partial")

    def model_path(self, key: WeightsKey, entry_file: str | None) -> Path:
        """What the engine opens. Raises NotFound when the entry file is not part of the version."""
        files = self.folder(key) / "files"
        if entry_file is None:
            return files
        path = files / file_path(entry_file, what="entry file")
        if not path.is_file():
            raise NotFound(f"{key} has no file {entry_file!r}", next_steps=["check the profile's entry_file"])
        return path

    def listing(self, key: WeightsKey) -> Listing | None:
        """Of the published version; None when it is not here."""
        manifest = self._manifest(key)
        return None if manifest is None else parse_listing(manifest, key)

    def _manifest(self, key: WeightsKey) -> dict[str, Any] | None:
        path = self.folder(key) / "manifest.json"
        try:
            manifest: dict[str, Any] | None = read_json(path)
        except ValueError as e:
            log.error("%s cannot be read (%s): %s counts as not here", path, e, key)
            return None
        return manifest

    def publish(self, listing: Listing) -> None:
        """Make a complete partial version the published one. Its files are synced and verified."""
        partial, place = self.partial(listing.key), self.folder(listing.key)
        if place.exists():
            self._to_trash(place)
        self._write_manifest(partial, listing)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(partial, place)
        sync_folder(place.parent)
        sync_folder(self.root)

    def _write_manifest(self, folder: Path, listing: Listing) -> None:
        files = [
            {
                "path": one.path,
                "size": one.size,
                "sha256": one.sha256,
                "seen": _look(folder / "files" / one.path),
            }
            for one in listing.files
        ]
        write_json(
            folder / "manifest.json",
            {"model": listing.key.model, "version": listing.key.version, "files": files},
        )

    def verify(self, key: WeightsKey, on_bytes: Callable[[int], None], stop: threading.Event) -> str | None:
        """None when every file is what the manifest says, else what is wrong.

        A file whose size and times are those seen when its checksum matched is not read again; any
        other is hashed in full. Calls `on_bytes` with the size of what was checked. Raises Unavailable
        soon after `stop` was set."""
        manifest = self._manifest(key)
        if manifest is None:
            return f"{key} is not here"
        try:
            listing = parse_listing(manifest, key)
        except InvalidRequest as e:
            return f"the manifest of {key} is damaged: {e.text}"
        seen = {one["path"]: one.get("seen") for one in manifest["files"]}
        renew = False
        for one in listing.files:
            path = self.folder(key) / "files" / one.path
            look = _look(path)
            if look is None:
                return f"{one.path} of {key} is gone"
            if look[0] != one.size:
                return f"{one.path} of {key} has {look[0]} bytes, expected {one.size}"
            if look != seen.get(one.path):
                if (found := hash_file(path, stop)) != one.sha256:
                    return f"{one.path} of {key} has sha256 {found}, expected {one.sha256}"
                renew = True
            on_bytes(one.size)
        if renew:
            self._write_manifest(self.folder(key), listing)
        return None

    def find(self, sha256: str) -> Path | None:
        """A file of a published version with this content, unchanged since its checksum was seen to match."""
        places = sorted(self.root.glob("[!.]*/*"))
        for gone in set(self._contents) - set(places):
            self._contents.pop(gone, None)  # others do the same meanwhile
        for place in places:
            one = self._contents_of(place).get(sha256)
            if one is not None and _look(one[0]) == one[1]:
                return one[0]
        return None

    def _contents_of(self, place: Path) -> dict[str, tuple[Path, list[int]]]:
        """By sha256: a version's files, and how they looked. Read again when the manifest looks different."""
        look, known = _look(place / "manifest.json"), self._contents.get(place)
        if known is not None and known[0] == look:
            return known[1]
        try:
            manifest = read_json(place / "manifest.json")
            files = manifest["files"] if manifest is not None else []
            found = {one["sha256"]: (place / "files" / str(one["path"]), one["seen"]) for one in files}
        except (ValueError, TypeError, KeyError):
            found = {}  # a damaged manifest: its version counts as not here
        self._contents[place] = (look, found)
        return found

    def missing_bytes(self, listing: Listing) -> int:
        """What is still to be fetched of a partial version."""
        folder = self.partial(listing.key) / "files"
        return sum(max(0, one.size - _allocated(folder / one.path)) for one in listing.files)

    def remove(self, key: WeightsKey) -> int:
        """Delete a version, published or partial; returns the bytes freed, by a second look at what is left.

        Raises NotFound, and OSError when some of it cannot be deleted."""
        places = [place for place in (self.folder(key), self.partial(key)) if place.exists()]
        if not places:
            raise NotFound(f"{key} is not on this node")
        held = sum(_tree_bytes(place / "files") for place in places)
        gone = [self._to_trash(place) for place in places]
        self.empty_trash()
        return held - sum(_tree_bytes(place / "files") for place in (*places, *gone))

    def _to_trash(self, place: Path) -> Path:
        trash = self.root / ".trash" / f"{os.getpid()}-{next(self._numbers)}"
        os.rename(place, trash)
        return trash

    def empty_trash(self) -> None:
        """Delete what earlier removals left, also those a crash interrupted."""
        with self._emptying:
            for one in (self.root / ".trash").iterdir():
                shutil.rmtree(one)

    def held(self) -> tuple[Held, ...]:
        """All versions on disk, in order of name."""
        found = []
        for under, complete in ((self.root, True), (self.root / ".partial", False)):
            for place in sorted(under.glob("[!.]*/*")):
                name = "manifest.json" if complete else "listing.json"
                try:
                    body = read_json(place / name)
                    key = WeightsKey(body["model"], body["version"])
                except (ValueError, TypeError, KeyError):
                    continue  # a folder without a readable name is nothing one could ask for
                size = sum(one["size"] for one in body["files"]) if complete else _tree_bytes(place / "files")
                found.append(Held(key, size, complete))
        return tuple(sorted(found, key=lambda held: (held.key.model, held.key.version)))

    def begin(self, listing: Listing) -> Path:
        """Prepare the partial folder; files of an older listing that do not belong any more go."""
        partial = self.partial(listing.key)
        files = partial / "files"
        files.mkdir(parents=True, exist_ok=True)
        wanted = {files / one.path for one in listing.files}
        for path in files.rglob("*"):
            if path.is_file() and path not in wanted:
                path.unlink()
        write_json(
            partial / "listing.json",
            {
                "model": listing.key.model,
                "version": listing.key.version,
                "files": [vars(f) for f in listing.files],
            },
        )
        for one in listing.files:
            (files / one.path).parent.mkdir(parents=True, exist_ok=True)
        return files

    def free_bytes(self) -> int:
        """Of the file system the weights lie on."""
        return shutil.disk_usage(self.root).free


class PartialFile:
    """One file being written, hashed as it grows. Blocking."""

    def __init__(self, path: Path, wanted: WeightsFile, stop: threading.Event) -> None:
        """Reads what is there already. Raises Unavailable soon after `stop` was set."""
        self._path = path
        self._wanted = wanted
        self._hash = hashlib.sha256()
        self.size = 0
        self._file = path.open("ab")
        if _size(path) > wanted.size:
            self.restart()
        else:
            try:
                self.size = _hash_into(self._hash, path, stop)
            except BaseException:
                self._file.close()
                raise

    def restart(self) -> None:
        """Throw away what is there."""
        self._file.flush()
        self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.size = 0

    def append(self, data: bytes) -> None:
        """Raises OSError, with ENOSPC when the disk is full."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def finish(self) -> str | None:
        """Sync. None when the content is right; else what is wrong, and the file starts empty again."""
        self._file.flush()
        os.fsync(self._file.fileno())
        found = self._hash.hexdigest()
        if self.size == self._wanted.size and found == self._wanted.sha256:
            return None
        self.restart()
        return f"{self._wanted.path} came with sha256 {found}, expected {self._wanted.sha256}"

    def close(self) -> None:
        """What was written so far stays, to be resumed."""
        self._file.close()


def hash_file(path: Path, stop: threading.Event) -> str:
    """sha256 in hex. Raises Unavailable soon after `stop` was set."""
    digest = hashlib.sha256()
    _hash_into(digest, path, stop)
    return digest.hexdigest()


def _hash_into(digest: "hashlib._Hash", path: Path, stop: threading.Event) -> int:
    """Bytes read. In pieces: a thread that hashes half a terabyte must end when its agent does."""
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            if stop.is_set():
                raise Unavailable(f"reading {path.name} was given up")
            digest.update(chunk)
            size += len(chunk)
    return size


def _look(path: Path) -> list[int] | None:
    """Size, mtime and ctime (ns). The change time cannot be set by a program, so a file that was
    written to, or put in place of the other, looks different."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _allocated(path: Path) -> int:
    """What the disk holds of a file, which may have holes where pieces are missing."""
    try:
        seen = path.stat()
    except FileNotFoundError:
        return 0
    return min(seen.st_size, seen.st_blocks * 512)


def _tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
