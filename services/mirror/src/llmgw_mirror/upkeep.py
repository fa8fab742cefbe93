"""What runs by itself: a pass over the whole store that starts what is missing, tells the ledger what
changed, and collects what nobody needs.

Level-triggered: a lost event, a restart or another mirror's death only costs time.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.adapters.store import version_id
from llmgw_mirror.core.versions import VersionView, WeightsState
from llmgw_mirror.flight import content_key
from llmgw_mirror.flights import Flights
from llmgw_mirror.garbage import Garbage
from llmgw_mirror.ports import Ledger, Unstorable

log = logging.getLogger(__name__)

#: Between two looks for what nobody needs any more; it reads all small files of the store.
TIDY_EVERY_S = 60.0
NOTHING: Mapping[str, Collection[str]] = MappingProxyType({})


class Upkeep:
    """Of one mirror process."""

    def __init__(
        self,
        *,
        shelf: Shelf,
        flights: Flights,
        garbage: Garbage,
        reads: OpenReads,
        ledger: Ledger,
        clock: Clock,
        interval_s: float,
    ) -> None:
        self._shelf = shelf
        self._store = shelf.store
        self._threads = shelf.threads
        self._flights = flights
        self._garbage = garbage
        self._reads = reads
        self._ledger = ledger
        self._clock = clock
        self._interval_s = interval_s
        self._tidied_at: float | None = None
        #: What kind keeps passes from being finished, and since when. None: nothing does.
        self._trouble: tuple[str, float] | None = None
        #: Sweep what others keep beside content, once content has been collected; they block.
        self.beside: list[Callable[[], None]] = []
        #: What the ledger was told last, by version; None: it may hold anything.
        self._told: dict[tuple[str, str], VersionView] | None = None
        #: Of the last pass, for the metrics page.
        self.last_seen: Sequence[VersionView] = ()
        #: Versions that the ledger will never take as they are, and why.
        self.refused: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Pass after pass, for ever."""
        while True:
            self._flights.landed.clear()
            await self.once()
            await self._until_next()

    async def once(self) -> None:
        """One pass. What the ledger or the disk refuses now is left to the next one."""
        try:
            if self._tidied_at is None or self._clock.monotonic_s() - self._tidied_at >= TIDY_EVERY_S:
                await self._tidied()
                self._tidied_at = self._clock.monotonic_s()
            await self.look()
            await self.collect_parts()
        except Unavailable as e:
            self._unfinished(e.code, "this pass is not finished: %s", e.text)
        except OSError as e:
            self._unfinished(str(e.errno), "this pass is not finished, the disk says: %s", e)
        else:
            if self._trouble is not None:
                _, since = self._trouble
                log.info("passes are finished again, after %.0f s", self._clock.monotonic_s() - since)
            self._trouble = None

    def _unfinished(self, kind: str, text: str, said: object) -> None:
        """Told once for each kind of trouble, and again when it is over: passes come every few seconds."""
        before, since = self._trouble or (None, self._clock.monotonic_s())
        log.log(logging.DEBUG if kind == before else logging.WARNING, text, said)
        self._trouble = kind, since

    async def _tidied(self) -> None:
        """What goes wrong in giving back must not keep anybody from fetching."""
        try:
            await self.tidy()
        except (Unavailable, OSError):
            raise
        except Exception:
            log.exception("nothing more is given back for now, which a bug ended")

    async def begin(self) -> None:
        """Start what a restart interrupted, before anybody asks how far it is."""
        await self._start_all()

    async def look(self) -> None:
        """One pass: start what is missing, tell the ledger what changed."""
        # Content may have been condemned by another process over this store.
        self._reads.cut_condemned()
        self.last_seen = await self._start_all()
        await self._tell(self.last_seen)

    async def tidy(self) -> None:
        """At start and every minute: what crashes left behind and nobody needs any more. Raises Unavailable
        when the ledger is."""
        await self._threads.run(lambda: self._store.sweep(now=self._clock.unix_s()))
        # First, so that a label left by a finished fetch does not hold on to content for ever.
        await self.collect_parts()
        await self._garbage.collect()
        for sweep in self.beside:
            await self._threads.run(sweep)

    async def collect_parts(self, dropped: Mapping[str, Collection[str]] = NOTHING) -> int:
        """Remove the parts of what nobody wants any more; returns the bytes freed. `dropped`: files, by
        version id, that are not wanted, though nothing on the disk says so yet."""
        parts = await self._shelf.everything()
        if not parts:
            return 0
        wanted = self._flights.keys() | (await self._ledger.live()).keys()
        for stored in await self._flights.load_all():
            gone = {path for path, word in stored.cancelled.items() if word.discard}
            gone |= set(dropped.get(version_id(stored.wish.model, stored.wish.version), ()))
            wanted |= {content_key(source) for source in stored.sought() if source.path not in gone}
        return await self._shelf.remove(path for path, key in parts.items() if key not in wanted)

    async def _start_all(self) -> list[VersionView]:
        views = []
        ids = await self._threads.run(self._store.ids)
        await self._flights.ground_all_but(ids)
        for vid in ids:
            try:
                view = await self._start(vid)
            except (Unavailable, OSError):
                raise
            except Exception:
                # One version must not cost all others, on every mirror over this store, their pass.
                log.exception("version %s is left out of this pass, which a bug ended for it", vid)
                continue
            if view is not None:
                views.append(view)
        return views

    async def _start(self, vid: str) -> VersionView | None:
        """What is missing of one version. None: another mirror removed it."""
        async with self._flights.changing:
            stored = await self._flights.load(vid)
            if stored is None:
                return None
            # Stopped at another mirror, perhaps.
            await self._flights.ground(vid, stored.cancelled)
            await self._flights.start_missing(vid, stored)
            return self._flights.view(vid, stored)

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
            self.refused.pop(gone, None)
        for name, view in now.items():
            if self._told.get(name) != view:
                await self._record(name, view)
                self._told[name] = view

    async def _record(self, name: tuple[str, str], view: VersionView) -> None:
        try:
            await self._ledger.record(view)
        except Unstorable as e:
            # Of a release that checked less. Said once for each state it is in.
            log.error("%s %s is not recorded: %s", *name, e.text)
            self.refused[name] = e.text
        except Unavailable:
            raise
        except Exception:
            log.exception("%s %s is not recorded, by a bug", *name)
            self.refused[name] = "by a bug; the mirror's log has the story"
        else:
            self.refused.pop(name, None)


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
