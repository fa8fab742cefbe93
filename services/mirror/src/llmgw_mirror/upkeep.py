"""What runs by itself: a pass over the whole store that starts what is missing, tells the ledger what
changed, and collects what nobody needs.

Level-triggered: a lost event, a restart or another mirror's death only costs time.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.parts import Shelf
from llmgw_mirror.core.versions import VersionView, WeightsState
from llmgw_mirror.fetcher import Fetcher
from llmgw_mirror.flight import content_key
from llmgw_mirror.flights import Flights
from llmgw_mirror.ports import Ledger

log = logging.getLogger(__name__)


class Upkeep:
    """Of one mirror process."""

    def __init__(
        self,
        *,
        shelf: Shelf,
        flights: Flights,
        fetcher: Fetcher,
        ledger: Ledger,
        clock: Clock,
        interval_s: float,
    ) -> None:
        self._shelf = shelf
        self._store = shelf.store
        self._threads = shelf.threads
        self._flights = flights
        self._fetcher = fetcher
        self._ledger = ledger
        self._clock = clock
        self._interval_s = interval_s
        #: What the ledger was told last, by version; None: it may hold anything.
        self._told: dict[tuple[str, str], VersionView] | None = None
        #: Of the last pass, for the metrics page.
        self.last_seen: Sequence[VersionView] = ()

    async def run(self) -> None:
        """Pass after pass, for ever."""
        tidied = False
        while True:
            self._flights.landed.clear()
            try:
                if not tidied:
                    await self.tidy()
                    tidied = True
                await self.look()
                await self.collect_parts()
            except Unavailable as e:
                log.warning("this pass is not finished: %s", e.text)
            await self._until_next()

    async def begin(self) -> None:
        """Start what a restart interrupted, before anybody asks how far it is."""
        await self._start_all()

    async def look(self) -> None:
        """One pass: start what is missing, tell the ledger what changed."""
        self.last_seen = await self._start_all()
        await self._tell(self.last_seen)

    async def tidy(self) -> None:
        """Once at start: what crashes left behind. Raises Unavailable when the ledger is."""
        await self._threads.run(lambda: self._store.sweep(now=self._clock.unix_s()))
        # First, so that a label left by a finished fetch does not hold on to content for ever.
        await self.collect_parts()
        async with self._fetcher.publishing():
            named = await self._threads.run(self._store.referenced)
            # Content published a moment before a crash has a label yet and no receipt.
            named |= await self._shelf.sealed()
            for sha256 in await self._threads.run(self._store.every_blob):
                if sha256 not in named:
                    log.info("content %s belongs to no version and is removed", sha256)
                    await self._threads.run(self._store.unlink_blob, sha256)

    async def collect_parts(self) -> int:
        """Remove the parts of what nobody wants any more; returns the bytes freed."""
        parts = await self._shelf.everything()
        if not parts:
            return 0
        wanted = self._flights.keys() | (await self._ledger.live()).keys()
        for stored in await self._flights.load_all():
            dropped = {path for path, word in stored.cancelled.items() if word.discard}
            done = stored.receipts.keys() | dropped
            wanted |= {content_key(f) for f in stored.wish.files if f.path not in done}
        return await self._shelf.remove(path for path, key in parts.items() if key not in wanted)

    async def _start_all(self) -> list[VersionView]:
        views = []
        for vid in await self._threads.run(self._store.ids):
            async with self._flights.changing:
                stored = await self._flights.load(vid)
                if stored is None:
                    continue  # removed by another mirror
                # Stopped at another mirror, perhaps.
                await self._flights.ground(vid, stored.cancelled)
                await self._flights.start_missing(vid, stored)
                views.append(self._flights.view(vid, stored))
        return views

    async def _until_next(self) -> None:
        waiting = asyncio.ensure_future(self._flights.landed.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(self._interval_s))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    async def _tell(self, views: Sequence[VersionView]) -> None:
        if self._told is None:
            kept = {(view.model, view.version) for view in views}
            for old in await self._ledger.recorded():
                if (old.model, old.version) not in kept:
                    await self._ledger.forget(old.model, old.version)
            self._told = {}
        now = {(view.model, view.version): _settled(view) for view in views}
        for gone in self._told.keys() - now.keys():
            await self._ledger.forget(*gone)
            del self._told[gone]
        for name, view in now.items():
            if self._told.get(name) != view:
                await self._ledger.record(view)
                self._told[name] = view


def _settled(view: VersionView) -> VersionView:
    """Without what changes all the time; progress travels with the leases."""
    return replace(
        view,
        files=tuple(
            replace(file, received_bytes=0, rate_bytes_s=None, eta_s=None)
            if file.state is not WeightsState.PRESENT
            else file
            for file in view.files
        ),
    )
