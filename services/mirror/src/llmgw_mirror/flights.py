"""Every file under way in this process, over what the store has: started, watched, noted when they end."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from llmgw_kit.clock import Clock
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.text import storable
from llmgw_mirror.adapters.bundle_marks import BundleMarks
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.store import Store, Stored
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.versions import (
    Failure,
    FileView,
    Proof,
    Source,
    VersionView,
    Wish,
    may_retry,
    view_file,
)
from llmgw_mirror.fetcher import Fetcher, Stopped, VersionGone
from llmgw_mirror.flight import FetchFailed, Flight
from llmgw_mirror.ports import History

log = logging.getLogger(__name__)

#: Versions that are read in one go of a disk thread.
READ_AT_ONCE = 64

PROVED = {
    Proof.SHA256: "proved by its sha256",
    Proof.GIT: "proved by its git id",
    Proof.NONE: "as received, no checksum is published",
}


@dataclass(frozen=True)
class _InAir:
    task: asyncio.Task[None]
    flight: Flight


class Hint(asyncio.Event):
    """Something changed: a pass, or a look, may come sooner. Counted, for those who must not clear it."""

    def __init__(self) -> None:
        super().__init__()
        self.hints = 0

    def set(self) -> None:
        self.hints += 1
        super().set()


class Flights:
    """By version id and path. Whoever changes what a version is holds `changing`."""

    def __init__(
        self, *, store: Store, threads: DiskThreads, fetcher: Fetcher, marks: BundleMarks, history: History,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._store = store
        self._threads = threads
        self._fetcher = fetcher
        self._marks = marks
        self._history = history
        self._clock = clock
        self._air: dict[tuple[str, str], _InAir] = {}
        #: Failures that a full disk did not let us note.
        self._unnoted: dict[tuple[str, str], Failure] = {}
        #: Fetching, removing and passes decide on what they see; one at a time.
        self.changing = asyncio.Lock()
        #: Set when something ended: a pass may come sooner.
        self.landed = Hint()
        #: Files given up since the start.
        self.failures = 0

    def __contains__(self, file: tuple[str, str]) -> bool:
        return file in self._air

    def __len__(self) -> int:
        return len(self._air)

    def keys(self) -> set[str]:
        """The contents that are fetched."""
        return {air.flight.key for air in self._air.values()}

    async def load(self, vid: str) -> Stored | None:
        """One version as it is now. A flight that lands while the disk is read belongs to neither the
        read nor the air: read again, so that its file is not taken for forgotten."""
        while True:
            before = set(self._air)
            stored = await self._threads.run(self._store.load, vid)
            if stored is None:
                return None
            if (now := self._as_of_now(vid, stored, before)) is not None:
                return now

    async def load_all(self) -> list[Stored]:
        """By model and version."""
        found: list[Stored | None] = []
        vids = await self._threads.run(self._store.ids)
        for at in range(0, len(vids), READ_AT_ONCE):
            some, before = vids[at : at + READ_AT_ONCE], set(self._air)
            # A change of threads for each would cost more than the looks.
            read = await self._threads.run(self._read, some)
            for vid, stored in zip(some, read, strict=True):
                now = None if stored is None else self._as_of_now(vid, stored, before)
                found.append(await self.load(vid) if now is None and stored is not None else now)
        return sorted(
            (stored for stored in found if stored is not None),
            key=lambda stored: (stored.wish.model, stored.wish.version),
        )

    def _read(self, vids: Sequence[str]) -> list[Stored | None]:
        """Blocks. What does not say what it should costs itself only: None, as if it were not there."""
        found: list[Stored | None] = []
        for vid in vids:
            try:
                found.append(self._store.load(vid))
            except (KeyError, TypeError, ValueError, AttributeError):
                # The next pass says so with its traceback.
                log.warning("version %s is not listed: its small files do not say what they should", vid)
                found.append(None)
        return found

    def _as_of_now(self, vid: str, stored: Stored, before: Collection[tuple[str, str]]) -> Stored | None:
        """With the failures that the disk does not know. None: one of those in the air `before` it was read
        has landed since."""
        unnoted = {path: failure for (v, path), failure in self._unnoted.items() if v == vid}
        if unnoted:
            stored = replace(stored, failures=stored.failures | unnoted)
        landed = {path for v, path in before if v == vid and (v, path) not in self._air} if before else ()
        if landed and any(source.path in landed for source in stored.missing()):
            return None
        return stored

    async def start_missing(self, vid: str, stored: Stored) -> None:
        """Fetch every file that is neither here, nor failed, nor under way."""
        waiting = set()
        for path, receipt in stored.hollow.items():
            if (vid, path) not in self._air:
                log.error(
                    "the content of %s (%s %s) is gone or has another size; it is fetched again",
                    path, stored.wish.model, stored.wish.version,
                )  # fmt: skip
                try:
                    await self._threads.run(self._store.drop_receipt, vid, path, receipt)
                except OSError as e:
                    log.warning("fetching %s again has to wait, the disk says: %s", path, e)
                    waiting.add(path)
        for source in stored.missing():
            if (vid, source.path) not in self._air and source.path not in waiting:
                where, proof = await self._threads.run(self._marks.instead, vid, source)
                if proof is None and (was := stored.was.get(source.path)) is not None:
                    proof = was.proof  # coming back as it was proves no more than was proved then
                flight = Flight(where, self._clock, proof=proof)
                before = stored.retried.get(source.path, 0)
                work = self._fly(vid, stored.wish, flight, before)
                task = asyncio.create_task(work, name=f"fetch {source.path}")
                self._air[vid, source.path] = _InAir(task, flight)

    async def ground(self, vid: str, paths: Collection[str]) -> None:
        """End the flights of these files; what they have stays, until somebody collects it."""
        await cancel_all(*(air.task for (v, path), air in self._air.items() if v == vid and path in paths))

    async def ground_all_but(self, vids: Collection[str]) -> None:
        """End the flights of versions that are not among these: removed, perhaps by another mirror."""
        async with self.changing:
            gone = {vid for vid, _ in self._air} - set(vids)
            # A version that was made since the list was read is not gone.
            for vid in [vid for vid in gone if await self._threads.run(self._store.load, vid) is None]:
                await self.ground(vid, [path for v, path in self._air if v == vid])

    def received(self, vid: str) -> dict[str, int]:
        """By path: how far the flights of a version are."""
        return {path: air.flight.received_bytes for (v, path), air in self._air.items() if v == vid}

    async def retry_failed(
        self, vid: str, stored: Stored, *, at_once: bool, paths: Collection[str] | None = None
    ) -> Stored:
        """Failed files (None: all, else those in `paths`) count as missing again: `at_once`, or where their
        time has come."""
        now, left, retried = self._clock.unix_s(), dict(stored.failures), dict(stored.retried)
        for path, failure in stored.failures.items():
            if (paths is None or path in paths) and (at_once or may_retry(failure, now)):
                del left[path]
                retried[path] = failure.count
                self._unnoted.pop((vid, path), None)
                await self._note(vid, path, failure, retried=True)
        return replace(stored, failures=left, retried=retried)

    async def stop(self) -> None:
        """End all; what they have stays and is resumed at the next start."""
        await cancel_all(*(air.task for air in self._air.values()))

    async def _fly(self, vid: str, wish: Wish, flight: Flight, failed_before: int) -> None:
        source = flight.source
        try:
            await self._fetcher.fetch(vid, source, flight)
            if flight.published is not None:
                text, size = PROVED[flight.published.proof], flight.published.size_bytes
                await self._tell(wish, source, Kind.PUBLISHED, text, size=size)
        except VersionGone:
            log.info("%s: its version was removed", source.path)
        except Stopped:
            log.info("%s: somebody stopped it", source.path)
        except FetchFailed as e:
            await self._failed(vid, wish, source, " — ".join((e.text, *e.next_steps)), failed_before)
        except Exception:
            # The rim: a bug must neither end the mirror nor be tried again every pass.
            log.exception("fetching %s failed by a bug", source.path)
            error = "internal error; the mirror's log has the story"
            await self._failed(vid, wish, source, error, failed_before)
        finally:
            self._air.pop((vid, source.path), None)
            self.landed.set()

    async def _failed(self, vid: str, wish: Wish, source: Source, error: str, failed_before: int) -> None:
        self.failures += 1
        # It may repeat what a server sent, halves of characters included.
        error = storable(error)
        log.error("%s failed: %s", source.path, error)
        failure = Failure(error, self._clock.unix_s(), failed_before + 1)
        # First of all: a failure that nobody knows of would be fetched again at once, for ever.
        self._unnoted[vid, source.path] = failure
        if await self._note(vid, source.path, failure):
            self._unnoted.pop((vid, source.path), None)
        if failure.count & failed_before == 0:
            # The 1st, 2nd, 4th, 8th … in a row: a controller that waits asks for ever.
            times = f" (the {failure.count}th time in a row)" if failure.count > 2 else ""
            await self._tell(wish, source, Kind.FAILED, error + times)

    async def _tell(self, wish: Wish, source: Source, kind: Kind, text: str, size: int | None = None) -> None:
        entry = Entry(
            self._clock.unix_s(), kind, wish.model, wish.version, text, path=source.path, bytes=size
        )
        await self._history.note(entry)

    async def _note(self, vid: str, path: str, failure: Failure, *, retried: bool = False) -> bool:
        try:
            await self._threads.run(lambda: self._store.put_failure(vid, path, failure, retried=retried))
        except FileNotFoundError:
            return True  # its version was removed: nothing is left to note
        except OSError as e:
            log.warning("the failure of %s cannot be noted on the disk: %s", path, e)
            return False
        except Exception:
            log.exception("the failure of %s is not noted on the disk, by a bug", path)
            return False
        return True

    def view(self, vid: str, stored: Stored) -> VersionView:
        """What the disk and the air amount to."""

        def one(source: Source) -> FileView:
            air = self._air.get((vid, source.path))
            return view_file(
                source,
                receipt=stored.receipts.get(source.path),
                failure=stored.failures.get(source.path),
                moving=air.flight.moving() if air else None,
                cancelled=stored.cancelled.get(source.path),
            )

        files = tuple(one(source) for source in stored.wish.files)
        wish = stored.wish
        return VersionView(
            wish.model, wish.version, wish.created_at, files, wish.repository, stored.verified_at
        )  # fmt: skip
