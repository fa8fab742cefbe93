"""What nobody needs any more, given back: removals whose time is over, content of no version, what was set
aside as damaged long enough ago, old lines of history. By time in every pass, and sooner when a fetch would
find the disk full."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.removals import Removal, Removals
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.fetcher import Fetcher
from llmgw_mirror.ports import History
from llmgw_mirror.publishing import Hold

log = logging.getLogger(__name__)

#: While content is removed: how old a look at what is named may be. It reads all small files of the store.
LOOK_AGAIN_S = 1.0
#: Lines of history forgotten in one pass; others wait for the lease meanwhile.
PRUNED_AT_ONCE = 1_000


@dataclass(frozen=True)
class DamagedBounds:
    """How long, and how much of it, damaged content is kept for people to look at."""

    keep_s: float
    keep_bytes: int


class Garbage:
    """Of one mirror process."""

    def __init__(
        self, *, shelf: Shelf, removals: Removals, fetcher: Fetcher, history: History, clock: Clock,
        damaged: DamagedBounds, history_keep_s: float,
    ) -> None:  # fmt: skip
        self._shelf = shelf
        self._store = shelf.store
        self._threads: DiskThreads = shelf.threads
        self._removals = removals
        self._fetcher = fetcher
        self._history = history
        self._clock = clock
        self._damaged = damaged
        self._history_keep_s = history_keep_s

    def named(self, but: str | None = None) -> set[str]:
        """Content that a version needs, or a removal that can be undone; without that of version id `but`.
        Blocks."""
        return self._store.referenced(but=but) | self._removals.contents()

    async def collect(self) -> None:
        """All that is due by now. Raises Unavailable."""
        now = self._clock.unix_s()
        async with self._fetcher.publishing():
            # Under the lease nothing is between two places.
            await self._threads.act("damaged removals stay", self._removals.sweep)
            # Here since one mirror of the store is enough.
            await self._history.prune(before=now - self._history_keep_s, most=PRUNED_AT_ONCE)
        for removed in await self._threads.run(self._removals.every):
            if removed.until <= now:
                await self.purge(removed, told="its time to be restored is over")
        await self.collect_blobs()
        await self._threads.act("damaged content stays", self._bound_damaged, now)

    async def collect_blobs(self) -> int:
        """Remove content of no version; returns the bytes freed. Raises Unavailable."""

        def unnamed() -> list[str]:
            # The content first: what is published after this look is not in the list.
            here = self._store.every_blob()
            named = self.named()
            return [sha256 for sha256 in here if sha256 not in named]

        # Without the lease first: usually there is nothing, and everybody else would wait for the look.
        if not await self._threads.run(unnamed):
            return 0
        async with self._fetcher.publishing() as hold:
            # Content published a moment before a crash has a label yet and no receipt.
            sealed = await self._shelf.sealed()
            left = [one for one in await self._threads.run(unnamed) if one not in sealed]
            for sha256 in left:
                log.info("content %s belongs to no version and is removed", sha256)
            return await self._free(left, hold)

    async def purge(self, removed: Removal, *, told: str | None) -> int:
        """Forget a removal for good and free what nothing else needs; returns the bytes freed. `told`: why,
        for the history; None: it is told elsewhere. Raises Unavailable; nothing is purged then."""
        async with self._fetcher.publishing() as hold:
            await hold.sure()
            if not await self._threads.act("nothing is purged", self._removals.forget, removed):
                return 0  # restored, or purged by another mirror
            freed = await self._free(sorted(removed.contents), hold)
        if told is not None:
            entry = Entry(
                self._clock.unix_s(), Kind.PURGED, removed.model, removed.version, told, bytes=freed
            )  # fmt: skip
            await self._history.note(entry)
        return freed

    async def _free(self, contents: Sequence[str], hold: Hold) -> int:
        """Remove those of them that nothing names; returns the bytes freed. What cannot be removed now is
        left to the next pass.

        Before each one the lease is proved to have been ours all the time, so that what was seen to be named
        is all that is: nobody else has published since."""
        freed, looked_at, named = 0, -math.inf, set[str]()
        for number, sha256 in enumerate(contents):
            try:
                if (now := self._clock.monotonic_s()) - looked_at > LOOK_AGAIN_S:
                    # A version that was only asked for takes no lease; it would find its content here.
                    looked_at, named = now, await self._threads.run(self.named)
                if sha256 in named:
                    continue
                await hold.sure()
                freed += await self._threads.act("content stays", self._unlink, sha256, hold)
            except Unavailable as e:
                log.warning("%d contents are left to the next pass: %s", len(contents) - number, e.text)
                break
        return freed

    def _unlink(self, sha256: str, hold: Hold) -> int:
        # Here, in the thread that does it: no wait lies between this and the act.
        hold.in_time()
        return self._store.unlink_blob(sha256)

    async def relieve(self, needed_bytes: int) -> int:
        """A fetch would find the disk full: free damaged content, then the oldest removals, until it fits.
        Removals stay when all of them would not be enough. Returns the bytes freed. Raises Unavailable."""
        freed = await self._threads.act("damaged content stays", self._drop_damaged)
        if freed + await self._threads.run(self._purgeable) < needed_bytes:
            return freed
        for removed in await self._threads.run(self._removals.every):
            if freed >= needed_bytes:
                break
            freed += await self.purge(removed, told="a fetch needed its room")
        return freed

    def _purgeable(self) -> int:
        """Bytes that only removals hold."""
        held = {sha256: size for one in self._removals.every() for sha256, size in one.contents.items()}
        return sum(held[sha256] for sha256 in held.keys() - self._store.referenced())

    def _bound_damaged(self, now: float) -> None:
        """Oldest first, by age and then by size."""
        found = sorted((seen.st_mtime, path, seen.st_size) for path, seen in self._store.every_damaged())
        left = sum(size for _, _, size in found)
        for at, path, size in found:
            if now - at < self._damaged.keep_s and left <= self._damaged.keep_bytes:
                return
            log.info("damaged content %s (%d bytes) is removed: it was kept for long enough", path.name, size)
            path.unlink(missing_ok=True)
            left -= size

    def _drop_damaged(self) -> int:
        freed = 0
        for path, seen in self._store.every_damaged():
            path.unlink(missing_ok=True)
            freed += seen.st_size
        return freed
