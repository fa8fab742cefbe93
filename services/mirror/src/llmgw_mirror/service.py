"""The mirror as its callers know it: versions asked for and listed."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound, Unavailable
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.store import Store, Stored, version_id
from llmgw_mirror.adapters.together import Together
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.core.versions import Repository, Source, VersionView, differences, wish
from llmgw_mirror.flights import Flights
from llmgw_mirror.ports import History
from llmgw_mirror.steering import Steering

log = logging.getLogger(__name__)


class Mirror:
    """One mirror process over one store."""

    def __init__(
        self, *, store: Store, threads: DiskThreads, flights: Flights, history: History, steering: Steering,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._store = store
        self._threads = threads
        self._flights = flights
        self._history = history
        self._steering = steering
        self._clock = clock
        self._looks = Together(self._look)

    async def fetch(
        self, model: str, version: str, files: Sequence[Source], *, repository: Repository | None = None,
        asked_by: str | None = None, beside: Mapping[str, bytes] | None = None,
    ) -> VersionView:  # fmt: skip
        """Bring a version here, or say how far it is. Failed files are tried again, if not too soon; what
        somebody cancelled stays so.

        Without files: a version asked for before, its failed and cancelled files at once. `beside`: see
        Store.create. Raises InvalidRequest, Conflict, Unavailable."""
        if not files:
            try:
                return await self._steering.retry(model, version, asked_by=asked_by)
            except NotFound as e:
                raise InvalidRequest(
                    f"{e.text}, and no files are named", next_steps=["name each file with its URL"]
                ) from None
        vid = version_id(model, version)
        async with self._flights.changing:
            stored, created = await self._wished(model, version, files, repository, beside)
            stored = await self._flights.retry_failed(vid, stored, at_once=False)
            await self._flights.start_missing(vid, stored)
        self._flights.landed.set()
        if created:
            count = len(stored.wish.files)
            text = f"{count} file{'' if count == 1 else 's'} to fetch"
            await self._history.note(
                Entry(self._clock.unix_s(), Kind.ASKED, model, version, text, asked_by=asked_by)
            )
        return self._flights.view(vid, stored)

    async def cancel(
        self, model: str, version: str, paths: Sequence[str] = (), *, discard: bool = False,
        asked_by: str | None = None,
    ) -> tuple[VersionView, int]:  # fmt: skip
        """See Steering.cancel."""
        return await self._steering.cancel(model, version, paths, discard=discard, asked_by=asked_by)

    async def retry(
        self, model: str, version: str, paths: Sequence[str] = (), *, asked_by: str | None = None
    ) -> VersionView:
        """See Steering.retry."""
        return await self._steering.retry(model, version, paths, asked_by=asked_by)

    async def _wished(
        self, model: str, version: str, files: Sequence[Source], repository: Repository | None,
        beside: Mapping[str, bytes] | None,
    ) -> tuple[Stored, bool]:  # fmt: skip
        """And whether it is new."""
        asked = wish(model, version, files, now=self._clock.unix_s(), repository=repository)
        vid = version_id(model, version)
        for _ in range(3):
            try:
                created = await self._threads.run(lambda: self._store.create(asked, beside=beside))
            except OSError as e:
                raise Unavailable(
                    f"the version cannot be noted on the disk: {e.strerror or e}",
                    code="disk_trouble",
                    next_steps=["see whether the mirror's disk is full or read-only"],
                ) from e
            stored = await self._flights.load(vid)
            if stored is None:
                continue  # removed by another mirror in this moment
            if not created and (unlike := differences(stored.wish.files, asked.files)):
                raise Conflict(
                    f"version {version!r} of {model!r} is known with other files: {'; '.join(unlike[:5])}"
                    + (f"; and {len(unlike) - 5} more" if len(unlike) > 5 else ""),
                    code="version_differs",
                    next_steps=["give the new files a version name of their own, or remove this one first"],
                )
            return stored, created
        raise Conflict(
            f"version {version!r} of {model!r} is being removed; ask again",
            next_steps=["ask again in a moment"],
        )

    async def version(self, model: str, version: str) -> VersionView | None:
        """None: nobody asked for it."""
        vid = version_id(model, version)
        stored = await self._flights.load(vid)
        if stored is None:
            return None
        if (stored.missing() or stored.hollow) and not self._flights.changing.locked():
            # Asked for and not under way: content that vanished, or a moment after a restart. Where somebody
            # changes versions just now, the next pass does it.
            async with self._flights.changing:
                stored = await self._flights.load(vid)
                if stored is None:
                    return None
                await self._flights.start_missing(vid, stored)
        return self._flights.view(vid, stored)

    def content(self, sha256: str) -> Path:
        """Where published content lies."""
        return self._store.blob(sha256)

    async def versions(self, model: str | None = None) -> list[VersionView]:
        """All, or those of one model. Many who ask at once are answered by one look."""
        return [view for view in await self._looks.ask(None) if model is None or view.model == model]

    async def _look(self, _: None) -> list[VersionView]:
        return [
            self._flights.view(version_id(one.wish.model, one.wish.version), one)
            for one in await self._flights.load_all()
        ]

    async def disk(self) -> tuple[int, int]:
        """Total and free bytes."""
        return await self._threads.run(self._store.disk)

    def ready(self) -> tuple[bool, str]:
        """Whether this process can serve what it has; Postgres and upstreams are no part of that."""
        if not self._store.versions.is_dir():
            return False, f"data_dir {self._store.root} is gone"
        return True, "serving"
