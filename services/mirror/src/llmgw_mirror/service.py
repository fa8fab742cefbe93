"""The mirror itself: versions asked for, flights that bring them, and a pass that puts right what is not.

Level-triggered: every pass looks at the whole store and starts what is missing, so a lost event, a
restart or another mirror's death only costs time.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound, Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_mirror.adapters.parts import Shelf
from llmgw_mirror.adapters.store import Stored, version_id
from llmgw_mirror.core.versions import (
    Failure,
    FileView,
    Source,
    VersionView,
    WeightsState,
    differences,
    view_file,
    wish,
)
from llmgw_mirror.fetcher import Fetcher, VersionGone
from llmgw_mirror.flight import FetchFailed, Flight, content_key
from llmgw_mirror.ports import Ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _InAir:
    task: asyncio.Task[None]
    flight: Flight


class Mirror:
    """One mirror process over one store."""

    def __init__(
        self, *, shelf: Shelf, fetcher: Fetcher, ledger: Ledger, clock: Clock, pass_interval_s: float
    ) -> None:
        self._shelf = shelf
        self._store = shelf.store
        self._threads = shelf.threads
        self._fetcher = fetcher
        self._ledger = ledger
        self._clock = clock
        self._pass_interval_s = pass_interval_s
        self._flights: dict[tuple[str, str], _InAir] = {}
        #: Fetch and remove decide on what they see; one at a time.
        self._changing = asyncio.Lock()
        self._hint = asyncio.Event()
        #: What the ledger was told last, by version; None: it may hold anything.
        self._told: dict[tuple[str, str], VersionView] | None = None
        self.failures = 0
        #: Of the last pass, for the metrics page.
        self.last_seen: Sequence[VersionView] = ()

    # What is asked for.

    async def fetch(self, model: str, version: str, files: Sequence[Source]) -> VersionView:
        """Bring a version here, or say how far it is. Failed files are tried again.

        Without files: a version asked for before. Raises InvalidRequest or Conflict."""
        vid = version_id(model, version)
        async with self._changing:
            if files:
                stored = await self._wished(model, version, files)
            else:
                known = await self._load(vid)
                if known is None:
                    raise InvalidRequest(
                        f"version {version!r} of {model!r} is not known, and no files are named",
                        next_steps=["name each file with its URL"],
                    )
                stored = known
            for path in stored.failures:
                if (vid, path) not in self._flights:
                    await self._threads.run(self._store.clear_failure, vid, path)
            stored = replace(stored, failures={})
            await self._start_missing(vid, stored)
        self._hint.set()
        return self._view(vid, stored)

    async def _wished(self, model: str, version: str, files: Sequence[Source]) -> Stored:
        asked = wish(model, version, files, now=self._clock.unix_s())
        vid = version_id(model, version)
        for _ in range(3):
            created = await self._threads.run(self._store.create, asked)
            stored = await self._load(vid)
            if stored is None:
                continue  # removed by another mirror in this moment
            if created:
                log.info("version %s of %s: %d files to fetch", version, model, len(asked.files))
            elif unlike := differences(stored.wish.files, asked.files):
                raise Conflict(
                    f"version {version!r} of {model!r} is known with other files: {'; '.join(unlike[:5])}"
                    + (f"; and {len(unlike) - 5} more" if len(unlike) > 5 else ""),
                    code="version_differs",
                    next_steps=["give the new files a version name of their own, or remove this one first"],
                )
            return stored
        raise Conflict(f"version {version!r} of {model!r} is being removed; ask again")

    async def remove(self, model: str, version: str) -> int:
        """Returns the bytes freed; content that another version has too stays.

        Raises NotFound; Conflict while a file of it is being fetched; Unavailable."""
        vid = version_id(model, version)
        async with self._changing:
            stored = await self._load(vid)
            if stored is None:
                raise NotFound(f"version {version!r} of {model!r} is not known")
            live = await self._ledger.live()
            moving = [
                file.path
                for file in stored.wish.files
                if file.path not in stored.receipts
                and ((vid, file.path) in self._flights or content_key(file) in live)
            ]
            if moving:
                raise Conflict(
                    f"version {version!r} of {model!r} is being fetched: {moving[0]}"
                    + (f" and {len(moving) - 1} more" if len(moving) > 1 else ""),
                    code="being_fetched",
                    next_steps=["wait until it is present or failed, then remove it"],
                )
            freed = 0
            async with self._fetcher.publishing():
                await self._threads.run(self._store.remove, vid)
                shared = await self._threads.run(self._store.referenced)
                for sha256 in sorted({receipt.sha256 for receipt in stored.receipts.values()} - shared):
                    freed += await self._threads.run(self._store.unlink_blob, sha256)
            freed += await self.collect_parts()
        log.info("removed version %s of %s: %d bytes freed", version, model, freed)
        self._hint.set()
        return freed

    # What is known.

    async def version(self, model: str, version: str) -> VersionView | None:
        """None: nobody asked for it."""
        vid = version_id(model, version)
        stored = await self._load(vid)
        if stored is None:
            return None
        if stored.missing() or stored.hollow:
            # Asked for and not under way: content that vanished, or a moment after a restart.
            await self._start_missing(vid, stored)
        return self._view(vid, stored)

    def content(self, sha256: str) -> Path:
        """Where published content lies."""
        return self._store.blob(sha256)

    async def versions(self, model: str | None = None) -> list[VersionView]:
        """All, or those of one model."""
        return [
            self._view(version_id(one.wish.model, one.wish.version), one)
            for one in await self._load_all()
            if model is None or one.wish.model == model
        ]

    async def downloads(self) -> list[VersionView]:
        """Versions that are not whole, each with the files that are not here."""
        found = []
        for view in await self.versions():
            files = tuple(file for file in view.files if file.state is not WeightsState.PRESENT)
            if files:
                found.append(replace(view, files=files))
        return found

    async def disk(self) -> tuple[int, int]:
        """Total and free bytes."""
        return await self._threads.run(self._store.disk)

    def ready(self) -> tuple[bool, str]:
        """Whether this process can serve what it has; Postgres and upstreams are no part of that."""
        if not self._store.versions.is_dir():
            return False, f"data_dir {self._store.root} is gone"
        return True, "serving"

    @property
    def busy(self) -> bool:
        """Whether any file is under way."""
        return bool(self._flights)

    # What runs.

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

    async def begin(self) -> None:
        """Start what a restart interrupted, before anybody asks how far it is."""
        for vid in await self._threads.run(self._store.ids):
            async with self._changing:
                stored = await self._load(vid)
                if stored is not None:
                    await self._start_missing(vid, stored)

    async def run(self) -> None:
        """Pass after pass, for ever."""
        tidied = False
        while True:
            self._hint.clear()
            try:
                if not tidied:
                    await self.tidy()
                    tidied = True
                await self.look()
                await self.collect_parts()
            except Unavailable as e:
                log.warning("this pass is not finished: %s", e.text)
            await self._until_next()

    async def look(self) -> None:
        """One pass: start what is missing, tell the ledger what changed."""
        views = []
        for vid in await self._threads.run(self._store.ids):
            async with self._changing:
                stored = await self._load(vid)
                if stored is None:
                    continue  # removed by another mirror
                await self._start_missing(vid, stored)
                views.append(self._view(vid, stored))
        self.last_seen = views
        await self._tell(views)

    async def stop(self) -> None:
        """End all flights; what they have stays and is resumed at the next start."""
        await cancel_all(*(air.task for air in self._flights.values()))

    async def _until_next(self) -> None:
        waiting = asyncio.ensure_future(self._hint.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(self._pass_interval_s))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    async def _tell(self, views: list[VersionView]) -> None:
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

    async def collect_parts(self) -> int:
        """Remove the parts of what nobody wants any more; returns the bytes freed."""
        parts = await self._shelf.everything()
        if not parts:
            return 0
        wanted = {air.flight.key for air in self._flights.values()} | (await self._ledger.live()).keys()
        for stored in await self._load_all():
            wanted |= {content_key(f) for f in stored.wish.files if f.path not in stored.receipts}
        return await self._shelf.remove(path for path, key in parts.items() if key not in wanted)

    async def _start_missing(self, vid: str, stored: Stored) -> None:
        for path, receipt in stored.hollow.items():
            if (vid, path) not in self._flights:
                log.error(
                    "the content of %s (%s %s) is gone or has another size; it is fetched again",
                    path, stored.wish.model, stored.wish.version,
                )  # fmt: skip
                await self._threads.run(self._store.drop_receipt, vid, path, receipt)
        for source in stored.missing():
            if (vid, source.path) not in self._flights:
                flight = Flight(source, self._clock)
                task = asyncio.create_task(self._fly(vid, source, flight), name=f"fetch {source.path}")
                self._flights[vid, source.path] = _InAir(task, flight)

    async def _fly(self, vid: str, source: Source, flight: Flight) -> None:
        try:
            await self._fetcher.fetch(vid, source, flight)
            log.info("%s is present", source.path)
        except VersionGone:
            log.info("%s: its version was removed", source.path)
        except FetchFailed as e:
            await self._failed(vid, source, " — ".join((e.text, *e.next_steps)))
        except Exception:
            # The rim: a bug must neither end the mirror nor be tried again every pass.
            log.exception("fetching %s failed by a bug", source.path)
            await self._failed(vid, source, "internal error; the mirror's log has the story")
        finally:
            self._flights.pop((vid, source.path), None)
            self._hint.set()

    async def _failed(self, vid: str, source: Source, error: str) -> None:
        self.failures += 1
        log.error("%s failed: %s", source.path, error)
        failure = Failure(error, self._clock.unix_s())
        try:
            await self._threads.run(self._store.put_failure, vid, source.path, failure)
        except OSError as e:
            # Version removed, or a disk too full to say so: the next pass tries the file again.
            log.warning("the failure of %s could not be noted: %s", source.path, e)

    async def _load(self, vid: str) -> Stored | None:
        """One version as it is now. A flight that lands while the disk is read belongs to neither the
        read nor the air: read again, so that its file is not taken for forgotten."""
        while True:
            before = {path for flying, path in self._flights if flying == vid}
            stored = await self._threads.run(self._store.load, vid)
            if stored is None:
                return None
            landed = {path for path in before if (vid, path) not in self._flights}
            if not any(source.path in landed for source in stored.missing()):
                return stored

    async def _load_all(self) -> list[Stored]:
        found = [await self._load(vid) for vid in await self._threads.run(self._store.ids)]
        return sorted(
            (stored for stored in found if stored is not None),
            key=lambda stored: (stored.wish.model, stored.wish.version),
        )

    def _view(self, vid: str, stored: Stored) -> VersionView:
        def one(source: Source) -> FileView:
            air = self._flights.get((vid, source.path))
            return view_file(
                source,
                receipt=stored.receipts.get(source.path),
                failure=stored.failures.get(source.path),
                moving=air.flight.moving() if air else None,
            )

        files = tuple(one(source) for source in stored.wish.files)
        return VersionView(stored.wish.model, stored.wish.version, stored.wish.created_at, files)


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
