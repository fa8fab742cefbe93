"""What people say about fetches: stop, and go on. Noted on the disk, so that it holds for every mirror over
the store and outlives all of them; each mirror's next pass ends what it has under way.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, NotFound, Unavailable
from llmgw_kit.text import joined
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.adapters.store import Stored, version_id
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.refusals import unknown_version
from llmgw_mirror.core.versions import Cancelled, VersionView
from llmgw_mirror.flight import content_key
from llmgw_mirror.flights import Flights
from llmgw_mirror.ports import History
from llmgw_mirror.upkeep import NOTHING, Upkeep

log = logging.getLogger(__name__)


class Steering:
    """Of one mirror process."""

    def __init__(
        self, *, shelf: Shelf, threads: DiskThreads, flights: Flights, upkeep: Upkeep, history: History,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._shelf = shelf
        self._store = shelf.store
        self._threads = threads
        self._flights = flights
        self._upkeep = upkeep
        self._history = history
        self._clock = clock

    async def cancel(
        self, model: str, version: str, paths: Sequence[str] = (), *, discard: bool = False,
        asked_by: str | None = None,
    ) -> tuple[VersionView, int]:  # fmt: skip
        """Stop what is not here yet, all of it or these files; returns what is left and the bytes freed now.

        Files that failed are stopped too: nobody's repeated Fetch tries them again. Twice is once; with
        `discard` the second time, the bytes go. Raises NotFound, InvalidRequest, Unavailable."""
        vid = version_id(model, version)
        async with self._flights.changing:
            stored = await self._named(model, version, paths)
            kept = await self._kept(vid, stored)
            words = _words(stored, paths, kept, discard=discard, at=self._clock.unix_s(), by=asked_by)
            try:
                freed, fresh = 0, await self._mark(vid, words)
            except Unavailable:
                if not discard:
                    raise
                freed, fresh = await self._mark_in_the_room_of(vid, words)
            await self._flights.ground(vid, paths or [source.path for source in stored.wish.files])
            # Again: one that landed in this moment is here, and its mark is gone.
            stored = await self._named(model, version, paths)
        self._flights.landed.set()
        freed += await self._collect() if discard else 0
        stopped = [path for path in fresh if path in stored.cancelled]
        if stopped:
            await self._tell(Kind.CANCELLED, stored, stopped, asked_by, "dropped" if discard else "kept")
        return self._flights.view(vid, stored), freed

    async def retry(
        self, model: str, version: str, paths: Sequence[str] = (), *, asked_by: str | None = None
    ) -> VersionView:
        """Fetch failed and cancelled files again, at once: all, or these. What is here or on its way is left
        alone. Raises NotFound, InvalidRequest, Unavailable."""
        vid = version_id(model, version)
        async with self._flights.changing:
            stored = await self._named(model, version, paths)
            meant = set(paths or (source.path for source in stored.wish.files))
            again = sorted(meant & (stored.failures.keys() | stored.cancelled.keys()))
            await self._unmark(vid, {p: word for p, word in stored.cancelled.items() if p in meant})
            left = {path: word for path, word in stored.cancelled.items() if path not in meant}
            stored = await self._flights.retry_failed(
                vid, replace(stored, cancelled=left), at_once=True, paths=meant
            )
            await self._flights.start_missing(vid, stored)
        self._flights.landed.set()
        if again:
            await self._tell(Kind.RETRIED, stored, again, asked_by, None)
        return self._flights.view(vid, stored)

    async def _named(self, model: str, version: str, paths: Sequence[str]) -> Stored:
        stored = await self._flights.load(version_id(model, version))
        if stored is None:
            raise unknown_version(model, version)
        known = {source.path for source in stored.wish.files}
        if unknown := [path for path in paths if path not in known]:
            raise InvalidRequest(
                f"version {version!r} of {model!r} has no file {unknown[0]!r}"
                + (f", nor {len(unknown) - 1} more of those named" if len(unknown) > 1 else ""),
                code="unknown_file",
                next_steps=["name files as the version lists them, or none to mean all"],
            )
        return stored

    async def _kept(self, vid: str, stored: Stored) -> dict[str, int]:
        """By path: the bytes that are here of files that are not whole."""
        lengths = await self._shelf.lengths()
        flying = self._flights.received(vid)
        return {
            source.path: max(lengths.get(content_key(source), 0), flying.get(source.path, 0))
            for source in stored.sought()
        }

    async def _mark(self, vid: str, words: dict[str, Cancelled]) -> list[str]:
        """All, or none when the disk does not take them."""
        done: list[str] = []
        try:
            for path, word in words.items():
                await self._threads.run(self._store.stop, vid, path, word)
                done.append(path)
        except FileNotFoundError:
            raise NotFound(
                "the version was removed in this moment",
                code="unknown_version",
                next_steps=["see what is here: llmgwctl mirror versions"],
            ) from None
        except OSError as e:
            stay = [p for p in done if not await self._undone(self._store.resume, vid, p)]
            what = f"these files alone are cancelled: {joined(stay)}" if stay else "nothing is cancelled"
            raise _disk_trouble(f"{what}; it cannot be noted on the disk", e) from e
        return done

    async def _mark_in_the_room_of(self, vid: str, words: dict[str, Cancelled]) -> tuple[int, list[str]]:
        """A full disk takes no word, and what is to be dropped makes room for it: the bytes first. Returns
        how many, and what is marked. Raises Unavailable; what is freed is told."""
        await self._flights.ground(vid, words)
        freed = await self._collect({vid: words})
        try:
            return freed, await self._mark(vid, words)
        except Unavailable as e:
            raise Unavailable(
                f"{e.text}; {freed} bytes that came of these files are freed all the same",
                code=e.code,
                next_steps=e.next_steps,
            ) from e

    async def _unmark(self, vid: str, words: dict[str, Cancelled]) -> None:
        """All, or none when the disk does not take it."""
        done: list[str] = []
        try:
            for path in words:
                await self._threads.run(self._store.resume, vid, path)
                done.append(path)
        except OSError as e:
            gone = [p for p in done if not await self._undone(self._store.stop, vid, p, words[p])]
            told = f"these files alone are not cancelled any more: {joined(gone)}"
            what = told if gone else "nothing is tried"
            raise _disk_trouble(f"{what}; it cannot be noted on the disk", e) from e

    async def _undone(self, act: Callable[..., None], *given: object) -> bool:
        """False: the disk does not even take that back; what it holds now is what is told."""
        try:
            await self._threads.run(act, *given)
        except OSError as e:
            log.error("%s cannot be put back as it was: %s", given[1], e)
            return False
        return True

    async def _collect(self, dropped: Mapping[str, Collection[str]] = NOTHING) -> int:
        try:
            return await self._upkeep.collect_parts(dropped)
        except (Unavailable, OSError) as e:
            log.warning("what was cancelled is dropped by a later pass: %s", e)
            return 0

    async def _tell(
        self, kind: Kind, stored: Stored, paths: Sequence[str], asked_by: str | None, bytes_are: str | None
    ) -> None:
        count = f"{len(paths)} of {len(stored.wish.files)} files"
        text = {
            Kind.CANCELLED: f"{count} stopped; what came of them is {bytes_are}",
            Kind.RETRIED: f"{count} tried again",
        }[kind]
        path = paths[0] if len(paths) == 1 else None
        wish, now = stored.wish, self._clock.unix_s()
        await self._history.note(Entry(now, kind, wish.model, wish.version, text, path, asked_by))


def _disk_trouble(what: str, e: OSError) -> Unavailable:
    return Unavailable(
        f"{what}: {e.strerror or e}",
        code="disk_trouble",
        next_steps=[
            "see whether the mirror's disk is full or read-only, then ask again",
            "what needs no room: llmgwctl mirror fetch --cancel MODEL@VERSION --discard",
        ],
    )


def _words(
    stored: Stored, paths: Sequence[str], kept: dict[str, int], *, discard: bool, at: float, by: str | None
) -> dict[str, Cancelled]:
    """What is to be noted, by path. The first word stands, with its time, unless the bytes are to go now."""
    found = {}
    for path in paths or [source.path for source in stored.wish.files]:
        first = stored.cancelled.get(path)
        if path in stored.receipts or (first is not None and (first.discard or not discard)):
            continue
        word = first or Cancelled(at, by, kept[path])
        found[path] = replace(word, received_bytes=0, discard=True) if discard else word
    return found
