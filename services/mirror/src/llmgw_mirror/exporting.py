"""Versions into a bundle: one task a name, which goes on when whoever asked has left."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, LlmgwError, NotFound, Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_mirror.adapters.bundle_files import BundleFolder, BundleSeen, Rotten, Writer, unseen
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.listings import listing
from llmgw_mirror.adapters.store import Store, version_id
from llmgw_mirror.core.bundle_layout import Member, layout
from llmgw_mirror.core.bundles import Manifest, PackedVersion, check_bundle_name, pack, plan_export
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.progress import Meter
from llmgw_mirror.core.versions import Moving, WeightsState
from llmgw_mirror.flights import Flights
from llmgw_mirror.leases import let_go
from llmgw_mirror.ports import History, Lease, Ledger

log = logging.getLogger(__name__)

#: Between two messages of progress.
TELL_S = 0.5
UNUSABLE = "nothing is exported, the bundle folder cannot be used"


@dataclass
class Progress:
    """Of an export or import; written by who does it, read by all who watch."""

    total_bytes: int
    total_files: int
    done_bytes: int = 0
    done_files: int = 0
    current_path: str | None = None
    meter: Meter = field(default_factory=Meter)
    #: At the end: what came of it.
    bundle: BundleSeen | None = None


@dataclass
class _Job:
    task: asyncio.Task[None]
    manifest: Manifest
    progress: Progress


class Exports:
    """Of one mirror process. `folder` is on a disk of the mirror's machine."""

    def __init__(
        self, *, folder: BundleFolder, store: Store, flights: Flights, ledger: Ledger, history: History,
        threads: DiskThreads, clock: Clock, lease_ttl_s: float, reserve_bytes: int,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._store = store
        self._flights = flights
        self._ledger = ledger
        self._history = history
        self._threads = threads
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._reserve_bytes = reserve_bytes
        #: Under way, by name.
        self._jobs: dict[str, _Job] = {}
        #: Two who ask for one name in the same moment get one task.
        self._beginning = asyncio.Lock()

    async def plan(self, names: Sequence[tuple[str, str]], bundle: str, since: str | None) -> Manifest:
        """What an export would write. Raises InvalidRequest, NotFound, Conflict."""
        check_bundle_name(bundle)
        before = None if since is None else await self._threads.run(self._folder.manifest, since)
        packed = [await self._pack(model, version) for model, version in dict.fromkeys(names)]
        return plan_export(bundle, packed, since=before)

    async def _pack(self, model: str, version: str) -> PackedVersion:
        vid = version_id(model, version)
        stored = await self._flights.load(vid)
        if stored is None:
            raise NotFound(
                f"version {version!r} of {model!r} is not known",
                code="unknown_version",
                next_steps=["see what is here: llmgwctl mirror versions"],
            )
        known = await self._threads.run(listing, self._store, vid)
        return pack(stored.wish, stored.receipts, known)

    async def export(
        self, names: Sequence[tuple[str, str]], bundle: str, *, since: str | None, asked_by: str | None
    ) -> AsyncIterator[Progress]:
        """Begin, or join one under way, and tell how far it is until it is done.

        Raises InvalidRequest, NotFound, Conflict (also for a name that a bundle has already), Unavailable."""
        manifest = await self.plan(names, bundle, since)
        async with self._beginning:
            job = self._under_way(manifest) or await self._begin(manifest, asked_by)
        async for progress in watched(job.task, job.progress, self._clock):
            yield progress

    def _under_way(self, manifest: Manifest) -> _Job | None:
        job = self._jobs.get(manifest.name)
        if job is None or job.task.done():
            return None
        if manifest != job.manifest:
            raise Conflict(
                f"bundle {manifest.name!r} is being written with other content",
                code="bundle_differs",
                next_steps=["give this one another name, or wait until that one is done"],
            )
        return job

    async def _begin(self, manifest: Manifest, asked_by: str | None) -> _Job:
        name = manifest.name
        if await self._is_there(name):
            if manifest != await self._threads.run(self._folder.manifest, name):
                raise Conflict(
                    f"a bundle {name!r} is there already, with other content",
                    code="bundle_exists",
                    next_steps=["choose another name, or take that file out of the mirror's bundle folder"],
                )
        else:
            await self._check_room(manifest)
        planned = layout(manifest)
        progress = Progress(
            total_bytes=sum(member.size_bytes for member in planned.members), total_files=len(planned.members)
        )
        task = asyncio.create_task(self._run(manifest, progress, asked_by), name=f"export {name}")
        job = self._jobs[name] = _Job(task, manifest, progress)
        task.add_done_callback(lambda _: self._over(job))
        return job

    def _over(self, job: _Job) -> None:
        if self._jobs.get(job.manifest.name) is job:
            del self._jobs[job.manifest.name]
        # Told to whoever watches; with nobody left, here.
        _told(job.task)

    async def _is_there(self, name: str) -> bool:
        return await self._threads.act(UNUSABLE, self._folder.path(name).exists)

    async def _check_room(self, manifest: Manifest) -> None:
        written = await self._threads.act(UNUSABLE, self._folder.written_bytes, manifest)
        needed = layout(manifest).size_bytes - written
        free = await self._threads.act(UNUSABLE, self._folder.free_bytes)
        if needed + self._reserve_bytes > free:
            raise Unavailable(
                f"the bundle folder has no room: {needed} bytes are needed, {free} are free, "
                f"{self._reserve_bytes} kept in reserve",
                code="disk_full",
                next_steps=["free some space there, or export fewer versions, or build on an earlier bundle"],
            )

    async def _run(self, manifest: Manifest, progress: Progress, asked_by: str | None) -> None:
        name, sha256 = manifest.name, None
        if await self._is_there(name):
            await self._threads.act("what stands beside the bundle is lacking", self._folder.complete, name)
        else:
            lease = await self._ledger.acquire(f"bundle:{name}", ttl_s=self._lease_ttl_s)
            if lease is None:
                raise Conflict(
                    f"bundle {name!r} is being written by another mirror over this store",
                    code="being_exported",
                    next_steps=["ask again: this mirror tells how far it is once that one is done"],
                )
            try:
                sha256 = await self._write(manifest, progress, lease)
            except OSError as e:
                raise Unavailable(
                    f"writing the bundle failed: {e.strerror or e}; what is written stays, "
                    "exporting again goes on from there",
                    code="disk_trouble",
                    next_steps=["see whether the bundle folder's disk is full, read-only or failing"],
                ) from e
            finally:
                await let_go(self._ledger, lease)
            for version in manifest.versions:
                size = sum(file.size_bytes for file in version.files)
                entry = Entry(
                    self._clock.unix_s(), Kind.EXPORTED, version.model, version.version,
                    f"in bundle {name}", asked_by=asked_by, bytes=size,
                )  # fmt: skip
                await self._history.note(entry)
        # One that is carried off in the last moment was written all the same.
        progress.bundle = await self._threads.run(self._folder.seen, name) or unseen(manifest, sha256)
        progress.done_bytes, progress.done_files = progress.total_bytes, progress.total_files

    async def _write(self, manifest: Manifest, progress: Progress, lease: Lease) -> str:
        """Returns the file's sha256. Raises OSError, Conflict, LlmgwError for content that is rotten."""
        paths = {file.content: file.source.path for v in manifest.versions for file in v.files}
        await self._threads.run(lambda: self._folder.remove_partials(but=manifest))
        writer = await self._threads.run(Writer, self._folder, manifest)
        try:
            for member in writer.layout.members:
                progress.current_path = paths.get(member.sha256 or "")
                await self._member(writer, member, progress, lease)
                progress.done_files += 1
            await self._keep(lease, progress)
            return await self._threads.run(writer.finish)
        finally:
            await self._threads.run(writer.close)

    async def _member(self, writer: Writer, member: Member, progress: Progress, lease: Lease) -> None:
        source = None if member.sha256 is None else self._store.blob(member.sha256)
        pieces = writer.write(member, source)
        kept_at = self._clock.monotonic_s()
        try:
            while (done := await self._threads.run(next, pieces, None)) is not None:
                progress.done_bytes += done
                progress.meter.note(self._clock.monotonic_s(), progress.done_bytes)
                if self._clock.monotonic_s() - kept_at > self._lease_ttl_s / 3:
                    await self._keep(lease, progress)
                    kept_at = self._clock.monotonic_s()
        except FileNotFoundError:
            raise Conflict(
                f"{progress.current_path} was removed while it was exported",
                code="removed",
                next_steps=["see what is here: llmgwctl mirror versions"],
            ) from None
        except Rotten as e:
            raise LlmgwError(
                f"{progress.current_path} is not what it was: content {e.sha256[:12]}… {e.found}",
                code="rotten",
                next_steps=["have it fetched again: llmgwctl mirror verify MODEL@VERSION; then export again"],
            ) from None

    async def _keep(self, lease: Lease, progress: Progress) -> None:
        moving = Moving(WeightsState.FETCHING, progress.done_bytes, progress.total_bytes)
        try:
            kept = await self._ledger.renew(lease, ttl_s=self._lease_ttl_s, moving=moving)
        except Unavailable as e:
            # The lease spares work, no more: who else writes this bundle writes the same bytes.
            log.info("the lease on %s is not renewed: %s", lease.key, e.text)
            return
        if not kept:
            raise Conflict(
                "another mirror over this store writes the bundle now",
                code="being_exported",
                next_steps=["ask again: this mirror tells how far it is once that one is done"],
            )

    async def stop(self) -> None:
        """What is written stays; exporting again goes on from there."""
        await cancel_all(*(job.task for job in self._jobs.values()))


async def watched(task: asyncio.Task[None], progress: Progress, clock: Clock) -> AsyncIterator[Progress]:
    """How far it is, now and then, and once more at the end. Raises what the task raised. Leaving ends the
    watching alone."""
    while not task.done():
        yield replace(progress)
        tick = asyncio.create_task(clock.sleep(TELL_S), name="until the next word")
        try:
            await asyncio.wait({task, tick}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(tick)
    if task.cancelled():
        raise Unavailable(
            "the mirror is stopping; what is done stays",
            code="stopping",
            next_steps=["export again once it runs: it goes on from there"],
        )
    if (error := task.exception()) is not None:
        raise error
    yield replace(progress)


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        text = error.text if isinstance(error, LlmgwError) else repr(error)
        log.warning("%s ended: %s", task.get_name(), text)
