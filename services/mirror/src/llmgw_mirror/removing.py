"""Removing versions, with a way back for a while, and giving back the room they take.

A removal takes the version out of service at once and keeps its bytes for the undo window. What is then
purged, by time, by wish or because a fetch needs the room, goes under the publishing lease, so that nobody
names content in the moment in which it is found to be nobody's.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, LlmgwError, NotFound, Unavailable
from llmgw_kit.text import joined
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.removals import Removal, Removals, VersionExists, removal
from llmgw_mirror.adapters.store import Stored, version_id
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.refusals import unknown_version
from llmgw_mirror.core.versions import VersionView
from llmgw_mirror.fetcher import Fetcher
from llmgw_mirror.flight import content_key
from llmgw_mirror.flights import Flights
from llmgw_mirror.garbage import Garbage
from llmgw_mirror.ports import History, Ledger
from llmgw_mirror.upkeep import Upkeep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Removed:
    """What a removal does, or would do. `restorable_until`: seconds since 1970; None: for good, at once.
    `freed_bytes`: now, or when that time is over. `readers`: who read it in that moment."""

    freed_bytes: int
    shared_bytes: int
    restorable_until: float | None
    readers: tuple[str, ...]


class Removing:
    """Of one mirror process. `undo_s`: how long a removal can be taken back."""

    def __init__(
        self, *, removals: Removals, threads: DiskThreads, flights: Flights, upkeep: Upkeep,
        fetcher: Fetcher, garbage: Garbage, ledger: Ledger, reads: OpenReads, history: History, clock: Clock,
        undo_s: float,
    ) -> None:  # fmt: skip
        self._removals = removals
        self._threads = threads
        self._flights = flights
        self._upkeep = upkeep
        self._fetcher = fetcher
        self._garbage = garbage
        self._ledger = ledger
        self._reads = reads
        self._history = history
        self._clock = clock
        self._undo_s = undo_s

    async def remove(
        self, model: str, version: str, *, force: bool = False, dry_run: bool = False, now: bool = False,
        asked_by: str | None = None,
    ) -> Removed:  # fmt: skip
        """Take a version out of service; content that another version has too stays.

        Refused while a file of it is fetched or read, unless forced: then its fetches end, and its readers
        finish. Raises NotFound, Conflict, Unavailable; the version stands then, and fetches that were ended
        have begun again."""
        vid = version_id(model, version)
        async with self._flights.changing:
            stored = await self._known(model, version)
            await self._refuse_moving(vid, stored, force=force)
            if dry_run:
                return await self._answer(vid, stored, self._readers(stored), now=now)
            # Waits for the writers, so that no part is written any more when the parts are collected.
            await self._flights.ground(vid, [source.path for source in stored.wish.files])
            try:
                answer, record = await self._take_away(
                    model, version, force=force, now=now, asked_by=asked_by
                )
            except LlmgwError:
                if (stands := await self._flights.load(vid)) is not None:
                    await self._flights.start_missing(vid, stands)
                raise
            answer, later = await self._freed(answer, record, now=now)
        self._flights.landed.set()
        ends = "its bytes are freed" if now else f"it can be restored for {self._undo_s:g} s"
        late = "" if later is None else f" by a later pass: {later}"
        forced = f"; under readers: {joined(answer.readers)}" if answer.readers else ""
        await self._tell(Kind.REMOVED, model, version, ends + late + forced, asked_by, answer.freed_bytes)
        return answer

    async def restore(self, model: str, version: str, *, asked_by: str | None = None) -> VersionView:
        """Take the newest removal of a version back. Raises NotFound, Conflict, Unavailable."""
        vid = version_id(model, version)
        async with self._flights.changing:
            async with self._fetcher.publishing():
                removed = await self._newest(model, version)
                try:
                    back = await self._threads.act("nothing is restored", self._removals.bring_back, removed)
                except VersionExists:
                    raise Conflict(
                        f"version {version!r} of {model!r} was made anew since it was removed",
                        code="version_exists",
                        next_steps=["remove the new one first, or fetch under a version name of its own"],
                    ) from None
            stored = await self._flights.load(vid) if back else None
            if stored is None:
                raise NotFound(
                    f"version {version!r} of {model!r} went away in this moment",
                    code="not_removed",
                    next_steps=["see what can be restored: llmgwctl mirror removed"],
                )
            # Files that were not whole when it was removed come again.
            await self._flights.start_missing(vid, stored)
        self._flights.landed.set()
        await self._tell(Kind.RESTORED, model, version, "its removal is undone", asked_by, removed.bytes)
        return self._flights.view(vid, stored)

    async def removed(self) -> Sequence[Removal]:
        """What can be restored, oldest removal first."""
        now = self._clock.unix_s()
        return [one for one in await self._threads.run(self._removals.every) if one.until > now]

    async def _known(self, model: str, version: str) -> Stored:
        stored = await self._flights.load(version_id(model, version))
        if stored is None:
            raise unknown_version(model, version)
        return stored

    async def _newest(self, model: str, version: str) -> Removal:
        mine = [one for one in await self.removed() if (one.model, one.version) == (model, version)]
        if not mine:
            raise NotFound(
                f"version {version!r} of {model!r} is not among the removed ones",
                code="not_removed",
                next_steps=["list the removed versions; one whose time is over has to be fetched again"],
            )
        return mine[-1]

    async def _refuse_moving(self, vid: str, stored: Stored, *, force: bool) -> None:
        live = await self._ledger.live()
        moving = [
            source.path
            for source in stored.sought()
            if (vid, source.path) in self._flights or content_key(source) in live
        ]
        if moving and not force:
            wish = stored.wish
            raise Conflict(
                f"version {wish.version!r} of {wish.model!r} is being fetched: {joined(moving)}",
                code="being_fetched",
                next_steps=["wait until it is present or failed, cancel the fetch, or force the removal"],
            )

    async def _answer(self, vid: str, stored: Stored, readers: tuple[str, ...], *, now: bool) -> Removed:
        contents = {receipt.sha256: receipt.size_bytes for receipt in stored.receipts.values()}
        shared = contents.keys() & await self._threads.run(self._garbage.named, vid)
        shared_bytes = sum(contents[sha256] for sha256 in shared)
        until = None if now else self._clock.unix_s() + self._undo_s
        return Removed(sum(contents.values()) - shared_bytes, shared_bytes, until, readers)

    def _readers(self, stored: Stored) -> tuple[str, ...]:
        """Who reads it from this process in this moment."""
        return tuple(self._reads.peers_of(receipt.sha256 for receipt in stored.receipts.values()))

    async def _take_away(
        self, model: str, version: str, *, force: bool, now: bool, asked_by: str | None
    ) -> tuple[Removed, Removal]:
        vid = version_id(model, version)
        async with self._fetcher.publishing() as hold:
            # Looked at under the lease, which may have been waited for: another mirror may have removed it or
            # made it anew, and nodes may have begun to read.
            stored = await self._known(model, version)
            readers = self._readers(stored)
            if readers and not force:
                raise Conflict(
                    f"version {version!r} of {model!r} is being read by {joined(readers)}",
                    code="being_read",
                    next_steps=["wait until they have it, or force it: they finish, nobody begins any more"],
                )
            answer = await self._answer(vid, stored, readers, now=now)
            contents = {receipt.sha256: receipt.size_bytes for receipt in stored.receipts.values()}
            at = self._clock.unix_s()
            record = removal(
                model, version, at=at, until=answer.restorable_until or at, asked_by=asked_by,
                contents=contents,
            )  # fmt: skip
            await hold.sure()
            if not await self._put(record, for_good=now):
                await self._known(model, version)
                raise Conflict(
                    f"version {version!r} of {model!r} changed in this moment",
                    code="version_changed",
                    next_steps=["ask again"],
                )
        return answer, record

    async def _put(self, record: Removal, *, for_good: bool) -> bool:
        try:
            return await self._threads.act(
                "nothing is removed", lambda: self._removals.put(record, for_good=for_good)
            )
        except Unavailable as e:
            if for_good:
                raise
            steps = [
                *e.next_steps,
                "one that needs no room: llmgwctl mirror remove MODEL@VERSION --now",
            ]
            raise Unavailable(e.text, code=e.code, next_steps=steps) from e

    async def _freed(self, answer: Removed, record: Removal, *, now: bool) -> tuple[Removed, str | None]:
        """After it was taken away: what that frees now; and why the rest is left to the next pass, if it is.
        No failure of this changes that it is removed."""
        freed, parts, later = 0 if now else answer.freed_bytes, 0, None
        try:
            parts = await self._upkeep.collect_parts()
            if now:
                freed = await self._garbage.purge(record, told=None)
        except (Unavailable, OSError) as e:
            later = e.text if isinstance(e, Unavailable) else str(e.strerror or e)
            log.warning(
                "%s %s is removed; its bytes are freed by a later pass: %s",
                record.model,
                record.version,
                later,
            )
        return replace(answer, freed_bytes=freed + parts), later

    async def _tell(
        self, kind: Kind, model: str, version: str, text: str, asked_by: str | None, size: int
    ) -> None:
        entry = Entry(self._clock.unix_s(), kind, model, version, text, asked_by=asked_by, bytes=size)
        await self._history.note(entry)
