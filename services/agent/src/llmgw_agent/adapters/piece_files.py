"""The files of a version that is put together piece by piece. All blocking.

A file grows with holes where pieces are still missing; which are here is never written down, but found by
hashing what is there: a list beside the files could be ahead of them after a power cut.
"""

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent.adapters.weights_store import CHUNK_BYTES, hash_file
from llmgw_agent.core.weights import Listing
from llmgw_kit.errors import Unavailable
from llmgw_kit.pieces import Layout


class PieceFiles:
    """`folder` holds the listing's files; `layout` numbers their pieces."""

    def __init__(self, folder: Path, listing: Listing, layout: Layout) -> None:
        self._folder, self._listing, self.layout = folder, listing, layout

    def present(self, file: int, hashes: Sequence[bytes], stop: threading.Event) -> int:
        """The pieces of one file that are here and right. Raises Unavailable soon after `stop` was set."""
        found, first = 0, self.layout.first[file]
        try:
            handle = self._path(file).open("rb")
        except FileNotFoundError:
            return 0
        with handle:
            for number, wanted in enumerate(hashes):
                place = self.layout.place(first + number)
                handle.seek(place.offset)
                digest, left = hashlib.sha256(), place.length
                while left and (data := handle.read(min(CHUNK_BYTES, left))):
                    if stop.is_set():
                        raise Unavailable(f"reading {self._path(file).name} was given up")
                    digest.update(data)
                    left -= len(data)
                if not left and digest.digest() == wanted:
                    found |= 1 << first + number
        return found

    def write(self, piece: int, data: bytes | bytearray) -> None:
        """A piece whose hash has been seen to match. Raises OSError, with ENOSPC when the disk is full."""
        place = self.layout.place(piece)
        assert len(data) == place.length, "a piece is written whole"
        descriptor = os.open(self._path(place.file), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            view, at = memoryview(data), place.offset
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
        finally:
            os.close(descriptor)

    def finish(self, file: int, stop: threading.Event) -> str | None:
        """Sync one file and read it whole once. None when it is as listed; else what is wrong, and it is
        gone: its pieces were those the mirror named, so that more of the same would not help."""
        wanted, path = self._listing.files[file], self._path(file)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, wanted.size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        found = hash_file(path, stop)
        if found == wanted.sha256:
            return None
        path.unlink()
        return f"{wanted.path} came with sha256 {found}, expected {wanted.sha256}"

    def _path(self, file: int) -> Path:
        return self._folder / self._listing.files[file].path


def read_piece(folder: Path, listing: Listing, layout: Layout, piece: int) -> bytes:
    """Of files in `folder`. Raises OSError when they are not there, or end early."""
    place = layout.place(piece)
    with (folder / listing.files[place.file].path).open("rb") as file:
        data = os.pread(file.fileno(), place.length, place.offset)
    if len(data) < place.length:
        raise OSError(f"{listing.files[place.file].path} ends before byte {place.offset + place.length}")
    return data
