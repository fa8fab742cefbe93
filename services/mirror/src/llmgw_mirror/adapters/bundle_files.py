"""Bundles on the disk: one folder of tar files, each with its checksum and its manifest beside it.

    models.tar                  whole: it appears by rename
    models.tar.sha256           as sha256sum reads it
    models.tar.manifest.json    what it holds; enough for a later bundle to build on, when the bundle itself
                                has left: so neither of the two comes before the bundle is whole
    models.tar.1a2b….partial    one that was broken off, or is being written; named by its manifest, since
                                two that write the same write the same bytes, and others another file

All calls block; run them in DiskThreads.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmgw_kit.errors import InvalidRequest, NotFound, Unavailable
from llmgw_mirror.adapters.disk import TEMPORARY, sync_folder, write_atomically
from llmgw_mirror.core.bundle_layout import BLOCK, END, Layout, Member, layout, manifest_size
from llmgw_mirror.core.bundles import (
    CHECKSUM,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    PARTIAL,
    Manifest,
    check_bundle_name,
    dump,
    parse,
)

#: Of one read and one write.
COPY_BYTES = 4 << 20


@dataclass(frozen=True)
class BundleSeen:
    """A bundle as it lies in the folder. `manifest` None: it cannot be read, as `trouble` says."""

    name: str
    size_bytes: int
    partial: bool
    #: Seconds since 1970; None: it is not written yet.
    at: float | None
    manifest: Manifest | None
    sha256: str | None = None
    trouble: str | None = None


def unseen(manifest: Manifest, sha256: str | None = None) -> BundleSeen:
    """Of a bundle that does not lie in the folder: as its manifest says. `sha256`: None: not known."""
    size = layout(manifest).size_bytes
    return BundleSeen(manifest.name, size, partial=False, at=None, manifest=manifest, sha256=sha256)


class BundleFolder:
    """Of one mirror; may be shared by several."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / check_bundle_name(name)

    def every(self) -> list[BundleSeen]:
        """By name; other files are passed over. Raises Unavailable when the folder cannot be read."""
        try:
            found = sorted(self.root.iterdir())
        except OSError as e:
            raise Unavailable(
                f"the bundle folder cannot be read: {e.strerror or e}",
                code="disk_trouble",
                next_steps=[f"see whether {self.root} is there and this user may read it"],
            ) from e
        named = [
            path
            for path in found
            if not path.name.endswith((CHECKSUM, MANIFEST)) and not path.name.startswith(TEMPORARY)
        ]
        return [seen for path in named if (seen := self._seen(path)) is not None]

    def seen(self, name: str) -> BundleSeen | None:
        """A whole bundle; None: it is not here."""
        return self._seen(self.path(name))

    def _seen(self, where: Path) -> BundleSeen | None:
        """None: nothing that could be one. One that cannot be read stands in no other's way."""
        partial = where.name.endswith(PARTIAL)
        name = where.name.removesuffix(PARTIAL).rpartition(".")[0] if partial else where.name
        try:
            path = self.path(name)
            found = where.stat()
        except (InvalidRequest, OSError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        try:
            manifest = _manifest_of(where)
        except FileNotFoundError:
            return None
        except (InvalidRequest, Unavailable) as e:
            return BundleSeen(name, found.st_size, partial, found.st_mtime, None, trouble=e.text)
        return BundleSeen(name, found.st_size, partial, found.st_mtime, manifest, _noted_checksum(path))

    def manifest(self, name: str) -> Manifest:
        """Of a whole bundle, or of one whose manifest alone is here. Raises NotFound, InvalidRequest,
        Unavailable."""
        path = self.path(name)
        try:
            return _manifest_of(path)
        except FileNotFoundError:
            pass
        try:
            return parse(_beside(path, MANIFEST).read_bytes())
        except FileNotFoundError:
            pass
        except OSError as e:
            raise _unreadable(_beside(path, MANIFEST), e) from e
        said = ", ".join(seen.name for seen in self.every()[:5] if not seen.partial) or "none"
        raise NotFound(
            f"no bundle {name!r} lies in the mirror's bundle folder; there are: {said}",
            code="unknown_bundle",
            next_steps=[f"copy the file into {self.root} on the mirror's machine, then import it again"],
        )

    def checked(self, name: str) -> tuple[Path, Layout, Manifest]:
        """A bundle whose every header is where its manifest says; its content is not read.

        Raises NotFound, InvalidRequest, Unavailable."""
        manifest = self.manifest(name)
        path, planned = self.path(name), layout(manifest)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != planned.size_bytes:
                    raise InvalidRequest(
                        f"bundle {name!r} has {size} bytes, its manifest says {planned.size_bytes}",
                        next_steps=["copy it again, and compare with its .sha256 file"],
                    )
                for member in planned.members:
                    if not _lies_there(file.fileno(), member):
                        raise InvalidRequest(
                            f"bundle {name!r} is damaged at byte {member.offset}",
                            next_steps=["copy it again, and compare with its .sha256 file"],
                        )
        except FileNotFoundError:
            raise NotFound(
                f"of bundle {name!r} only the manifest is here",
                code="unknown_bundle",
                next_steps=["bring the bundle itself into the folder"],
            ) from None
        except OSError as e:
            raise _unreadable(path, e) from e
        return path, planned, manifest

    def partial(self, manifest: Manifest) -> Path:
        """Where an export of just this is written until it is whole."""
        return _beside(self.path(manifest.name), f".{manifest.digest()}{PARTIAL}")

    def remove_partials(self, *, but: Manifest) -> None:
        """Of exports under this name that are not wanted any more."""
        keep = self.partial(but)
        # Not by a pattern with a star: "2026.tar" begins like "2026" and is another's.
        own = re.compile(re.escape(but.name) + r"\.[0-9a-f]{12}" + re.escape(PARTIAL))
        for path in self.root.iterdir():
            if path != keep and own.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def complete(self, name: str) -> None:
        """Write what should stand beside a whole bundle and does not, or speaks of an earlier one of that
        name: a death came between. Reads the bundle whole then. Raises InvalidRequest, OSError."""
        path = self.path(name)
        manifest = dump(_manifest_of(path))
        if _noted_checksum(path) is not None and _noted_manifest(path) == manifest:
            return
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        _put_beside(path, manifest, sha256)

    def free_bytes(self) -> int:
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def written_bytes(self, manifest: Manifest) -> int:
        """How much of an unfinished export is on the disk."""
        try:
            return self.partial(manifest).stat().st_size
        except FileNotFoundError:
            return 0


@dataclass
class Rotten(Exception):
    """Content of the store that is not what its name says; nothing of it stays in the bundle."""

    sha256: str
    found: str


class Writer:
    """Writes one bundle, goes on with one that was broken off, and names it when it is whole."""

    def __init__(self, folder: BundleFolder, manifest: Manifest) -> None:
        self._path = folder.path(manifest.name)
        self._partial = folder.partial(manifest)
        self._manifest = manifest
        self.layout = layout(manifest)
        self._whole = hashlib.sha256()
        # No truncation: what lies there already is compared, member by member, and kept.
        self._fd = os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o644)

    def close(self) -> None:
        os.close(self._fd)

    def write(self, member: Member, source: Path | None) -> Iterator[int]:
        """One member, or its reading again where it lies there already. Yields the bytes of its content that
        are done, piece by piece. Raises Rotten, OSError."""
        self._put(member.offset, member.header)
        if source is None:
            self._put(member.start, member.data)
            yield member.size_bytes
        else:
            yield from self._copy(member, source)
        self._put(member.start + member.size_bytes, member.padding)

    def _copy(self, member: Member, source: Path) -> Iterator[int]:
        digest = hashlib.sha256()
        with source.open("rb") as file:
            done = 0
            while done < member.size_bytes:
                piece = file.read(min(COPY_BYTES, member.size_bytes - done))
                if not piece:
                    raise Rotten(member.sha256 or "", f"it ends after {done} of {member.size_bytes} bytes")
                digest.update(piece)
                self._put(member.start + done, piece)
                done += len(piece)
                yield len(piece)
        if digest.hexdigest() != member.sha256:
            # What was copied stays in the unfinished file alone; the next try compares, and writes over it.
            raise Rotten(member.sha256 or "", f"it hashes to {digest.hexdigest()}")

    def finish(self) -> str:
        """Name it. Returns its sha256."""
        self._put(self.layout.content_end, END)
        os.ftruncate(self._fd, self.layout.size_bytes)
        os.fsync(self._fd)
        sha256 = self._whole.hexdigest()
        # An earlier bundle's, which has left; it must not speak for this one.
        _beside(self._path, CHECKSUM).unlink(missing_ok=True)
        try:
            os.replace(self._partial, self._path)
        except FileNotFoundError:
            # Somebody who wrote the same named it meanwhile.
            if not self._path.exists():
                raise
        sync_folder(self._path.parent)
        _put_beside(self._path, dump(self._manifest), sha256)
        return sha256

    def _put(self, offset: int, data: bytes) -> None:
        self._whole.update(data)
        if os.pread(self._fd, len(data), offset) == data:
            return
        view, at = memoryview(data), offset
        while view:
            count = os.pwrite(self._fd, view, at)
            view, at = view[count:], at + count


def _lies_there(fd: int, member: Member) -> bool:
    if os.pread(fd, len(member.header), member.offset) != member.header:
        return False
    return member.sha256 is not None or os.pread(fd, member.size_bytes, member.start) == member.data


def _manifest_of(path: Path) -> Manifest:
    """Raises FileNotFoundError; InvalidRequest for what is no bundle; Unavailable when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = manifest_size(file.read(BLOCK))
            if size is None or size > MANIFEST_MAX_BYTES:
                raise InvalidRequest(
                    f"{path.name} is no bundle of this release",
                    next_steps=["export it again at a mirror of this release"],
                )
            return parse(file.read(size))
    except FileNotFoundError:
        raise
    except OSError as e:
        raise _unreadable(path, e) from e


def _unreadable(path: Path, e: OSError) -> Unavailable:
    return Unavailable(
        f"bundle {path.name} cannot be read: {e.strerror or e}",
        code="disk_trouble",
        next_steps=["let the mirror's user read that file, or copy it again"],
    )


def _noted_checksum(path: Path) -> str | None:
    try:
        return _beside(path, CHECKSUM).read_text(encoding="ascii").split()[0]
    except (OSError, ValueError, IndexError):
        return None


def _noted_manifest(path: Path) -> bytes | None:
    try:
        return _beside(path, MANIFEST).read_bytes()
    except FileNotFoundError:
        return None


def _put_beside(path: Path, manifest: bytes, sha256: str) -> None:
    # The checksum last: where it stands, the manifest is this bundle's too.
    # Whoever carries the bundle is somebody else, and reads what it should hash to.
    write_atomically(_beside(path, MANIFEST), manifest, mode=0o644)
    write_atomically(_beside(path, CHECKSUM), f"{sha256}  {path.name}\n".encode(), mode=0o644)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)
