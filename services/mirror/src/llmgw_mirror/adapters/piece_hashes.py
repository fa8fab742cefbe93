"""sha256 of each piece of published content, made once and kept beside it.

    pieces/ab/abcdef….json      {"format", "sha256", "size", "piece_bytes", "pieces": [hex, …]}

The published checksum covers a whole file; a node that takes a file in pieces from many others must be able
to tell which piece was wrong. Hashing pieces while fetching would cost every fetch a second hash, so it is
done after publication, in the background, and at the first ask for what was there before. A lost or damaged
file is made again. Content is immutable, so what is written here never becomes wrong.
"""

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_kit.pieces import PIECE_BYTES
from llmgw_mirror.adapters.disk import DiskThreads, make_folders, write_atomically
from llmgw_mirror.adapters.store import Store

log = logging.getLogger(__name__)

LAYOUT = 1
READ_BYTES = 1 << 20
#: Nodes know this code: they take whole files then.
DISK_TROUBLE = "disk_trouble"
#: Contents hashed at one time: each is one thread's work, and fetches need the rest.
AT_ONCE = 2
#: Files whose hashes are kept in memory; 140 GB are 9,000 of 64 characters.
REMEMBERED = 512
#: Content that was found damaged, or could not be read, is not read again for so long.
REFUSED_S = 60.0


class Damaged(Exception):
    """Content is not what its name says."""


@dataclass(frozen=True)
class _Refused:
    """Why nobody is told the pieces of a content until `until` (monotonic seconds)."""

    until: float
    text: str
    code: str
    next_step: str


class PieceHashes:
    """`on_damaged` hears of content that is not what its name says, before anybody is given its hashes."""

    def __init__(
        self, store: Store, clock: Clock, *, piece_bytes: int = PIECE_BYTES,
        on_damaged: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.piece_bytes = piece_bytes
        self._store, self._clock, self._on_damaged = store, clock, on_damaged
        #: Of its own: hashing takes a thread for seconds, and readers must not wait for it.
        self._threads = DiskThreads(AT_ONCE + 1)
        self._known: dict[str, tuple[str, ...]] = {}
        self._making: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, _Refused] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._stop = threading.Event()

    async def of(self, sha256: str, size: int) -> tuple[str, ...] | None:
        """Of content that is published; None: they are being made, ask again. Raises Unavailable when the
        content was found damaged, or cannot be read."""
        if size == 0:
            return ()
        if size <= self.piece_bytes:
            return (sha256,)
        if (known := self._known.get(sha256)) is not None:
            return known
        now, refused = self._clock.monotonic_s(), self._refused.get(sha256)
        if refused is not None and now < refused.until:
            raise Unavailable(
                refused.text, code=refused.code, retry_after_s=refused.until - now,
                next_steps=[refused.next_step],
            )  # fmt: skip
        if sha256 in self._making:
            return None
        if (kept := await self._threads.run(self._read, sha256, size)) is not None:
            self._remember(sha256, kept)
            return kept
        self.prepare(sha256, size)
        return None

    def prepare(self, sha256: str, size: int) -> None:
        """Begin to make them, if nobody has."""
        if size <= self.piece_bytes or sha256 in self._making or sha256 in self._known:
            return
        task = asyncio.create_task(self._make(sha256, size), name=f"pieces {sha256[:12]}")
        self._making[sha256] = task
        task.add_done_callback(lambda _: self._making.pop(sha256, None))

    @property
    def making(self) -> int:
        """Contents being hashed or waiting for it."""
        return len(self._making)

    @property
    def refused(self) -> int:
        """Contents whose pieces are told to nobody at present."""
        return len(self._refused)

    async def watch(self, interval_s: float) -> None:
        """Make those of what is published from now on: the nodes that want it come in the next seconds."""
        known: set[str] | None = None
        while True:
            try:
                now = set(await self._threads.run(self._store.every_blob))
                for sha256 in sorted(now - (now if known is None else known)):
                    size = await self._threads.run(self._store.blob_size, sha256)
                    if size is not None:
                        # What is noted already is read, not hashed, at the first ask.
                        noted = await self._threads.run(self._read, sha256, size)
                        if noted is None:
                            self.prepare(sha256, size)
                known = now
            except OSError as e:
                log.warning(
                    "what is published cannot be listed, so its pieces are hashed when asked for: %s", e
                )
            await self._clock.sleep(interval_s)

    async def close(self) -> None:
        """End what is under way; it is begun again when asked for."""
        self._stop.set()
        for task in tuple(self._making.values()):
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        self._threads.close()

    def sweep(self) -> None:
        """Remove the hashes of content that is gone. Blocks."""
        for path in self._root.glob("*/*.json"):
            if self._store.blob_size(path.stem) is None:
                path.unlink(missing_ok=True)

    async def _make(self, sha256: str, size: int) -> None:
        async with self._room:
            try:
                pieces = await self._threads.run(self._hash, sha256, size)
            except Damaged as e:
                log.error("content %s is damaged: %s; no node is told its pieces", sha256, e)
                self._refuse(
                    sha256, f"content {sha256} was found damaged", "damaged",
                    "it is being set aside and fetched again; ask again then",
                )  # fmt: skip
                self._on_damaged(sha256)
                return
            except FileNotFoundError:
                return  # removed in this moment; whoever asks again hears it from the version
            except OSError as e:
                # The disk's fault, and no word about the content.
                log.warning("the pieces of %s cannot be hashed: %s", sha256, e)
                self._refuse(
                    sha256, f"content {sha256} cannot be read in pieces: the disk says {e.strerror or e}",
                    DISK_TROUBLE, "see whether the mirror's disk is failing; files may be had whole",
                )  # fmt: skip
                return
        if pieces is not None:
            self._remember(sha256, pieces)

    def _refuse(self, sha256: str, text: str, code: str, next_step: str) -> None:
        now = self._clock.monotonic_s()
        self._refused = {name: one for name, one in self._refused.items() if now < one.until}
        self._refused[sha256] = _Refused(now + REFUSED_S, text, code, next_step)

    def _remember(self, sha256: str, pieces: tuple[str, ...]) -> None:
        self._known[sha256] = pieces
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    @property
    def _root(self) -> Path:
        return self._store.root / "pieces"

    def _path(self, sha256: str) -> Path:
        return self._root / sha256[:2] / f"{sha256}.json"

    def _read(self, sha256: str, size: int) -> tuple[str, ...] | None:
        try:
            kept = json.loads(self._path(sha256).read_text())
            fine = (kept["format"], kept["sha256"], kept["size"]) == (LAYOUT, sha256, size)
            pieces = tuple(kept["pieces"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        right = (
            fine and kept["piece_bytes"] == self.piece_bytes and len(pieces) == -(-size // self.piece_bytes)
        )
        return pieces if right and all(isinstance(one, str) and len(one) == 64 for one in pieces) else None

    def _hash(self, sha256: str, size: int) -> tuple[str, ...] | None:
        """Blocks. None: told to stop. The whole is hashed beside its pieces: hashes of damaged content would
        have every node fetch the damage, and find it at the end."""
        whole, pieces, seen = hashlib.sha256(), [], 0
        with self._store.blob(sha256).open("rb", buffering=0) as file:
            while seen < size:
                piece, left = hashlib.sha256(), min(self.piece_bytes, size - seen)
                while left:
                    if self._stop.is_set():
                        return None
                    data = file.read(min(READ_BYTES, left))
                    if not data:
                        raise Damaged(f"it ends at {seen} of {size} bytes")
                    piece.update(data)
                    whole.update(data)
                    left, seen = left - len(data), seen + len(data)
                pieces.append(piece.hexdigest())
        if whole.hexdigest() != sha256:
            raise Damaged(f"it hashes to {whole.hexdigest()}")
        said = {
            "format": LAYOUT, "sha256": sha256, "size": size, "piece_bytes": self.piece_bytes,
            "pieces": pieces,
        }  # fmt: skip
        try:
            make_folders(self._path(sha256).parent)
            write_atomically(self._path(sha256), json.dumps(said).encode() + b"\n")
        except OSError as e:
            # A full or read-only disk: they are right all the same, and are hashed again after a restart.
            log.warning("the pieces of %s are told but cannot be noted: %s", sha256, e)
        return tuple(pieces)
