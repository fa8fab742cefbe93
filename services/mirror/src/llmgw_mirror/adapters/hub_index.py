"""What the Hub's clients are offered, read from the store once and again when it changed.

Clients ask once a file and more, and a version of three hundred files is as many small files on the
disk. A folder's time of change tells whether it has to be read again: every act on a version makes,
links, renames or removes a file in its folder.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.listings import listing
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.adapters.together import Together
from llmgw_mirror.core.hub import HeldFile, Offer, offer

#: Two changes in one tick of the file system's clock leave the same time behind. What was read so soon
#: after a change is trusted for a moment only.
TICK_S, TRUSTED_SOON_S = 2.0, 0.2
#: Where the disk's clock is another machine's, the times prove less: no reading is trusted for longer.
TRUSTED_S = 60.0
#: A look is short; what takes long is read by one of them.
THREADS = 2


@dataclass(frozen=True)
class _Read:
    """One version as it was read. `changed_ns`: of its folder, before it was read. `until`: monotonic."""

    changed_ns: int
    repository: str | None
    offer: Offer | None
    until: float


class HubIndex:
    """Of one store, whoever else works on it. Blocks in threads of its own: looking must not wait behind
    files that are being sent."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._threads = DiskThreads(THREADS)
        self._clock = clock
        self._reads: dict[str, _Read] = {}
        #: Many clients at once find the same version changed; one of them reads it.
        self._reading = threading.Lock()
        self._looks = Together(self._looked)
        self._sizes = Together(self._size)

    async def repository(self, name: str) -> Sequence[Offer]:
        """Every version of it; empty: none is known here."""
        return (await self._looks.ask(name)).get(name, [])

    async def repositories(self) -> Mapping[str, Sequence[Offer]]:
        """All, by id."""
        return await self._threads.run(self._look, None)

    async def there(self, file: HeldFile) -> bool:
        """Whether its content lies in the store as it should; content that is damaged is set aside."""
        return await self._sizes.ask(file.sha256) == file.size_bytes

    async def _looked(self, name: str) -> Mapping[str, Sequence[Offer]]:
        return await self._threads.run(self._look, name)

    async def _size(self, sha256: str) -> int | None:
        return await self._threads.run(self._store.blob_size, sha256)

    def close(self) -> None:
        """No call may follow."""
        self._threads.close()

    def _look(self, only: str | None) -> Mapping[str, Sequence[Offer]]:
        found: dict[str, list[Offer]] = {}
        ids = self._store.ids()
        for vid in ids:
            known = self._reads.get(vid)
            # A version never moves to another repository.
            if only is not None and known is not None and known.repository != only:
                continue
            read = self._read(vid)
            if read is not None and read.offer is not None:
                found.setdefault(read.offer.repository, []).append(read.offer)
        if len(self._reads) > len(ids):
            with self._reading:
                for vid in self._reads.keys() - set(ids):
                    del self._reads[vid]
        return found

    def _read(self, vid: str) -> _Read | None:
        try:
            changed_ns = os.stat(self._store.versions / vid).st_mtime_ns
        except OSError:
            return None  # removed in this moment
        if (read := self._good(vid, changed_ns)) is not None:
            return read
        with self._reading:
            if (read := self._good(vid, changed_ns)) is not None:
                return read
            stored = self._store.load(vid)
            if stored is None:
                return None
            failed = {path: failure.error for path, failure in stored.failures.items()}
            stopped = {path: cancelled.told for path, cancelled in stored.cancelled.items()}
            made = offer(stored.wish, stored.receipts, failed | stopped, listing(self._store, vid))
            settled = self._clock.unix_s() - changed_ns / 1e9 > TICK_S
            until = self._clock.monotonic_s() + (TRUSTED_S if settled else TRUSTED_SOON_S)
            read = _Read(changed_ns, None if made is None else made.repository, made, until)
            self._reads[vid] = read
            return read

    def _good(self, vid: str, changed_ns: int) -> _Read | None:
        read = self._reads.get(vid)
        fine = read is not None and read.changed_ns == changed_ns and self._clock.monotonic_s() < read.until
        return read if fine else None
