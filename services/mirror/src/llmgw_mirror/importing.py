"""A bundle into the store: its versions are asked for like any others, with the bundle as their source.

So an import has the leases, the resuming and the checks of every fetch: each byte is hashed on its way in,
a killed mirror goes on by itself, and content that is here already is not read again.
"""

import logging
from collections.abc import AsyncIterator

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict
from llmgw_mirror.adapters.bundle_files import BundleFolder, unseen
from llmgw_mirror.adapters.bundle_marks import BundleMarks
from llmgw_mirror.adapters.bundle_notes import Notes, refuse_another
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.store import Store, version_id
from llmgw_mirror.core.bundles import Manifest, PackedVersion, lacking
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.versions import FileView, WeightsState
from llmgw_mirror.exporting import TELL_S, Progress
from llmgw_mirror.flights import Flights
from llmgw_mirror.ports import History

log = logging.getLogger(__name__)


class Imports:
    """Of one mirror process."""

    def __init__(
        self, *, folder: BundleFolder, marks: BundleMarks, store: Store, flights: Flights, history: History,
        threads: DiskThreads, clock: Clock,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._marks = marks
        self._store = store
        self._flights = flights
        self._history = history
        self._threads = threads
        self._clock = clock

    async def plan(self, bundle: str) -> Manifest:
        """What an import would bring, checked as a whole: the bundle is sound as far as its headers tell, all
        that it builds on is here, and no version here has its name and other content.

        Raises InvalidRequest, NotFound, Conflict."""
        _, _, manifest = await self._threads.run(self._folder.checked, bundle)
        here = await self._threads.run(lambda: frozenset(self._store.every_blob()))
        if without := lacking(manifest, here):
            raise Conflict(
                f"bundle {bundle!r} builds on {manifest.since!r}: {len(without)} of its files are not here",
                code="earlier_bundle_missing",
                next_steps=[f"llmgwctl mirror import {manifest.since}", f"llmgwctl mirror import {bundle}"],
            )
        for packed in manifest.versions:
            stored = await self._flights.load(version_id(packed.model, packed.version))
            if stored is not None:
                refuse_another(packed, stored)
        return manifest

    async def bring(self, bundle: str, *, asked_by: str | None) -> AsyncIterator[Progress]:
        """Import, and tell how far it is until every file is here. Leaving ends the watching alone; asked
        again it joins. Raises as `plan`, Unavailable, and Conflict with what failed."""
        manifest = await self.plan(bundle)
        fresh = await self._begin(manifest)
        for packed in fresh:
            size = sum(file.size_bytes for file in packed.files)
            text = f"from bundle {bundle}, {len(packed.files)} files"
            now = self._clock.unix_s()
            await self._history.note(
                Entry(now, Kind.IMPORTED, packed.model, packed.version, text, asked_by=asked_by, bytes=size)
            )
        self._flights.landed.set()
        files = [file for packed in manifest.versions for file in packed.files]
        progress = Progress(sum(file.size_bytes for file in files), len(files))
        while not await self._look(manifest, progress):
            yield progress
            await self._clock.sleep(TELL_S)
        yield await self._ended(manifest, progress)

    async def _begin(self, manifest: Manifest) -> list[PackedVersion]:
        """Note all versions and begin to bring them; returns those of which something was not here."""
        fresh = []
        async with self._flights.changing:
            # The plan was made before: what came in between is looked at again.
            await self._noted(manifest)
            for packed in manifest.versions:
                vid = version_id(packed.model, packed.version)
                stored = await self._flights.load(vid)
                # None: removed by another mirror; whoever watches is told.
                if stored is not None and (stored.missing() or stored.failures):
                    fresh.append(packed)
                    # An import is a new reason to try what had failed.
                    stored = await self._flights.retry_failed(vid, stored, at_once=True)
                    await self._flights.start_missing(vid, stored)
        return fresh

    async def _noted(self, manifest: Manifest) -> None:
        """All or none. Raises Conflict, Unavailable."""
        notes = Notes(self._store, self._marks, manifest.name)
        await self._threads.run(notes.note, manifest.versions)

    async def _look(self, manifest: Manifest, progress: Progress) -> bool:
        """Bring `progress` up to date. True: nothing moves any more."""
        settled, done_bytes, done_files = True, 0, 0
        progress.current_path = None
        for packed in manifest.versions:
            for file in await self._views(packed):
                done_bytes += file.received_bytes
                done_files += file.state is WeightsState.PRESENT
                if file.state in (WeightsState.FETCHING, WeightsState.VERIFYING):
                    settled, progress.current_path = False, file.source.path
                elif file.state is WeightsState.ABSENT and not file.cancelled:
                    settled = False
        progress.done_bytes, progress.done_files = done_bytes, done_files
        progress.meter.note(self._clock.monotonic_s(), done_bytes)
        return settled

    async def _views(self, packed: PackedVersion) -> tuple[FileView, ...]:
        vid = version_id(packed.model, packed.version)
        stored = await self._flights.load(vid)
        if stored is None:
            raise Conflict(
                f"version {packed.version!r} of {packed.model!r} was removed during the import",
                code="removed",
                next_steps=["import again to have it back; what came of the others stays"],
            )
        return self._flights.view(vid, stored).files

    async def _ended(self, manifest: Manifest, progress: Progress) -> Progress:
        failed: list[str] = []
        for packed in manifest.versions:
            meant = {file.source.path: file.content for file in packed.files}
            failed += [
                f"{file.source.path}: {why}"
                for file in await self._views(packed)
                if (why := _wrong(file, meant.get(file.source.path))) is not None
            ]
        if failed:
            more = f"; and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise Conflict(
                f"{len(failed)} of {progress.total_files} files of bundle {manifest.name!r} did not come: "
                f"{failed[0]}{more}",
                code="import_failed",
                next_steps=["copy the bundle again, compare with its .sha256 file, and import again: "
                            "what came stays"],
            )  # fmt: skip
        # One that was taken away in the last moment is told as its manifest says.
        progress.bundle = await self._threads.run(self._folder.seen, manifest.name) or unseen(manifest)
        return progress


def _wrong(file: FileView, meant: str | None) -> str | None:
    """Why the file is not the bundle's content `meant`; None: it is."""
    if file.state is not WeightsState.PRESENT:
        return file.error or "stopped"
    if file.sha256 != meant:
        # On its way before the import, and with no published checksum that could have told them apart.
        return (
            f"it came as {(file.sha256 or '')[:12]}… from elsewhere, and is other content in the bundle; "
            "remove the version first to have the bundle's"
        )
    return None
