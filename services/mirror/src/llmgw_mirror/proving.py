"""Content proved again, byte by byte; what is rotten is set aside, and all who need it learn of it."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.blob_reading import BlobReading
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.fetcher import Fetcher
from llmgw_mirror.flights import Flights
from llmgw_mirror.ports import History

log = logging.getLogger(__name__)

#: Told after each chunk: its bytes, and the bytes of the content read so far. It may wait.
OnChunk = Callable[[int, int], Awaitable[None]]
Run = Callable[..., Awaitable[Any]]


class ContentGone(Exception):
    """Removed or replaced while it was read: nothing is known about it."""


@dataclass(frozen=True)
class Rot:
    """What is wrong with a content, and what was done about it."""

    sha256: str
    text: str


class Prover:
    """One for verifying on demand and for scrubbing."""

    def __init__(
        self, *, store: Store, threads: DiskThreads, fetcher: Fetcher, flights: Flights, reads: OpenReads,
        history: History, clock: Clock,
    ) -> None:  # fmt: skip
        self._store = store
        self._threads = threads
        self._fetcher = fetcher
        self._flights = flights
        self._reads = reads
        self._history = history
        self._clock = clock
        #: Since the start of this process; read by the metrics page.
        self.quarantined = 0
        self.read_bytes = 0

    async def prove(
        self, sha256: str, *, threads: DiskThreads | None = None, on_chunk: OnChunk
    ) -> Rot | None:
        """None: every byte is right. `threads`: to read in, those for writing unless given.

        Raises ContentGone, Unavailable."""
        run = (threads or self._threads).run
        try:
            reading = await run(BlobReading, self._store.blob(sha256))
        except FileNotFoundError:
            raise ContentGone from None
        try:
            wrong = await self._read(reading, run, on_chunk)
            if wrong is None:
                try:
                    await run(reading.proved, self._clock.unix_s())
                except OSError as e:
                    log.warning("that content %s is right cannot be noted: %s", sha256, e)
                return None
            return await self._set_aside(reading, sha256, wrong)
        finally:
            reading.close()

    async def _read(self, reading: BlobReading, run: Run, on_chunk: OnChunk) -> str | None:
        """What is wrong, if anything is."""
        try:
            while count := await run(reading.more):
                self.read_bytes += count
                await on_chunk(count, reading.read_bytes)
        except OSError as e:
            return reading.lost(e)
        return reading.wrong()

    async def _set_aside(self, reading: BlobReading, sha256: str, wrong: str) -> Rot:
        async with self._fetcher.publishing() as hold:
            # Only under the lease: the other mirror over this store may have found the same rot first, and
            # the good content that came in its place must stay.
            if not await self._threads.run(reading.is_there):
                raise ContentGone
            await hold.sure()
            await self._threads.act("rotten content stays", self._store.set_aside, sha256)
        self._reads.cut_condemned()
        self.quarantined += 1
        text = f"damaged: {wrong}; set aside, not served any more, fetched again from its source"
        log.error("content %s is %s", sha256, text)
        now = self._clock.unix_s()
        for stored in await self._flights.load_all():
            for path, receipt in sorted(stored.hollow.items()):
                if receipt.sha256 == sha256:
                    entry = Entry(
                        now, Kind.QUARANTINED, stored.wish.model, stored.wish.version, text, path,
                        bytes=receipt.size_bytes,
                    )  # fmt: skip
                    await self._history.note(entry)
        # The next pass fetches it again, and may come at once.
        self._flights.landed.set()
        return Rot(sha256, text)
