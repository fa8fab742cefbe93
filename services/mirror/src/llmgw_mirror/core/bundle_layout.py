"""Where each byte of a bundle lies: a tar that any tool reads, whose offsets follow from its manifest alone.

    manifest.json            what it holds
    manifest.json.sha256     that the manifest is whole
    blobs/sha256/<sha256>    content, in the manifest's order

Since every byte is known before it is written, a broken off export goes on where it was, and whoever still
writes after losing its lease writes the same bytes to the same places.
"""

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from llmgw_mirror.core.bundles import Manifest, dump

BLOCK = tarfile.BLOCKSIZE
MANIFEST_NAME = "manifest.json"
CHECKSUM_NAME = "manifest.json.sha256"
BLOBS = "blobs/sha256/"
#: Two empty blocks end a tar.
END = bytes(2 * BLOCK)


@dataclass(frozen=True)
class Member:
    """`sha256`: of the content in the store; None: `data` is the content itself."""

    offset: int
    header: bytes
    size_bytes: int
    sha256: str | None = None
    data: bytes = b""

    @property
    def start(self) -> int:
        """Where its content begins."""
        return self.offset + len(self.header)

    @property
    def padding(self) -> bytes:
        return bytes(-self.size_bytes % BLOCK)

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.start + self.size_bytes + len(self.padding)


@dataclass(frozen=True)
class Layout:
    members: tuple[Member, ...]

    @property
    def content_end(self) -> int:
        return self.members[-1].end

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return self.content_end + len(END)

    def content_at(self, sha256: str) -> Member | None:
        """None: not in this bundle."""
        return next((member for member in self.members if member.sha256 == sha256), None)


def layout(manifest: Manifest) -> Layout:
    """Deterministic."""
    at = int(manifest.created_at)
    described = dump(manifest)
    digest = f"{hashlib.sha256(described).hexdigest()}  {MANIFEST_NAME}\n".encode()

    def parts() -> Iterator[tuple[bytes, int, str | None, bytes]]:
        yield header(MANIFEST_NAME, len(described), at), len(described), None, described
        yield header(CHECKSUM_NAME, len(digest), at), len(digest), None, digest
        for blob in manifest.blobs:
            yield header(BLOBS + blob.sha256, blob.size_bytes, at), blob.size_bytes, blob.sha256, b""

    made = list(parts())
    sizes = [len(head) + size + -size % BLOCK for head, size, _, _ in made]
    offsets = accumulate(sizes, initial=0)
    return Layout(
        tuple(
            Member(offset, head, size, sha256, data)
            for offset, (head, size, sha256, data) in zip(offsets, made, strict=False)
        )
    )


def header(name: str, size_bytes: int, at: int) -> bytes:
    """One block, or three where the size needs a record of its own (8 GiB and more)."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size_bytes, 0o444, at
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def manifest_size(first_block: bytes) -> int | None:
    """From a bundle's first block; None: it does not begin like a bundle."""
    try:
        entry = tarfile.TarInfo.frombuf(first_block, "utf-8", "strict")
    except tarfile.HeaderError:
        return None
    return entry.size if entry.name == MANIFEST_NAME and entry.isreg() else None
