"""What is here, as its callers know it: listed with who reads it and what is odd, found by short names."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.history import Entry
from llmgw_mirror.core.registry_rows import NotAnAnswer
from llmgw_mirror.core.resolving import by_name, by_place
from llmgw_mirror.core.versions import VersionView
from llmgw_mirror.core.warnings import Warning, not_recorded, of_version
from llmgw_mirror.core.weight_files import is_index
from llmgw_mirror.core.weight_index import INDEX_MAX_BYTES, ShardIndex, read_index
from llmgw_mirror.ports import History
from llmgw_mirror.removing import Removing
from llmgw_mirror.service import Mirror
from llmgw_mirror.verifying import Verifying

#: Lines of history: unless asked otherwise, and at most.
HISTORY_USUAL, HISTORY_MOST = 100, 1000
#: What they say is remembered of so many, the oldest forgotten first.
INDEXES_REMEMBERED = 1000
TOLD_REMEMBERED = 10_000


@dataclass(frozen=True)
class KeptVersion:
    """A version, who reads it now, and what it lacks."""

    view: VersionView
    readers: tuple[str, ...] = ()
    warnings: tuple[Warning, ...] = ()


class Keeping:
    """Of one mirror process."""

    def __init__(
        self, *, mirror: Mirror, store: Store, threads: DiskThreads, reads: OpenReads, history: History,
        removing: Removing, verifying: Verifying, unrecorded: Mapping[tuple[str, str], str],
    ) -> None:  # fmt: skip
        self._mirror = mirror
        self._store = store
        self._threads = threads
        self._reads = reads
        self._history = history
        self._unrecorded = unrecorded
        self.removing = removing
        self.verifying = verifying
        #: What indexes name, or why they cannot be read, by path and content; content never changes.
        self._indexes: dict[tuple[str, str], ShardIndex | str] = {}
        #: What is odd about files of these names, with the contents of those that are indexes.
        self._told: dict[tuple[tuple[str, str | None], ...], tuple[Warning, ...]] = {}

    async def versions(self, model: str | None = None) -> list[KeptVersion]:
        """All, or those of one model."""
        return [await self.described(view) for view in await self._mirror.versions(model)]

    async def described(self, view: VersionView) -> KeptVersion:
        """With what is known beside its files' states."""
        readers = self._reads.peers_of(file.sha256 for file in view.files if file.sha256 is not None)
        told = await self._odd(view)
        if (why := self._unrecorded.get((view.model, view.version))) is not None:
            told = (*told, not_recorded(why))
        return KeptVersion(view, tuple(readers), told)

    async def _odd(self, view: VersionView) -> tuple[Warning, ...]:
        """What is odd about its files."""
        files = tuple((f.source.path, f.sha256 if is_index(f.source.path) else None) for f in view.files)
        if (told := self._told.get(files)) is not None:
            await asyncio.sleep(0)  # of thousands in a row; the loop serves nodes meanwhile
            return told
        indexes: list[ShardIndex] = []
        unread: dict[str, str] = {}
        for path, sha256 in files:
            if sha256 is not None:
                said = await self._index(path, sha256)
                if isinstance(said, ShardIndex):
                    indexes.append(said)
                elif said is not None:
                    unread[path] = f"{path}: {said}"
        # Thousands of names against the table of formats.
        told = await asyncio.to_thread(of_version, [path for path, _ in files], indexes, unread)
        if len(indexes) + len(unread) == sum(sha256 is not None for _, sha256 in files):
            self._told[files] = told
            while len(self._told) > TOLD_REMEMBERED:
                del self._told[next(iter(self._told))]
        return told

    async def resolve(
        self, *, model: str | None, version: str | None, repository: str | None, revision: str | None
    ) -> KeptVersion:
        """The one version that is meant. Raises InvalidRequest, NotFound, Conflict."""
        if model is not None and version is not None and repository is None and revision is None:
            # The usual question needs no look at all others.
            exact = await self._mirror.version(model, version)
            if exact is not None:
                return await self.described(exact)
        views = await self._mirror.versions()
        if version is not None and repository is None and revision is None:
            return await self.described(by_name(views, model, version))
        if repository is not None and model is None and version is None:
            return await self.described(by_place(views, repository, revision))
        raise InvalidRequest(
            "which version is meant is not said",
            next_steps=["give a model and a version, or a repository and a revision"],
        )

    async def history(
        self, *, model: str | None, version: str | None, since: float | None, limit: int | None
    ) -> Sequence[Entry]:
        """Newest first. Raises InvalidRequest, Unavailable."""
        count = HISTORY_USUAL if limit is None else limit
        if not 1 <= count <= HISTORY_MOST:
            raise InvalidRequest(
                f"limit is {count}; expected 1 to {HISTORY_MOST}",
                next_steps=["ask for fewer, and give a later beginning"],
            )
        return await self._history.newest(model=model, version=version, since=since, limit=count)

    async def disk(self) -> tuple[int, int]:
        """Total and free bytes."""
        return await self._mirror.disk()

    async def _index(self, path: str, sha256: str) -> ShardIndex | str | None:
        """What an index names; or why it cannot be read as one. None: its content went away."""
        if (path, sha256) not in self._indexes:

            def read() -> ShardIndex | str | None:
                size = self._store.blob_size(sha256)
                if size is None:
                    return None
                if size > INDEX_MAX_BYTES:
                    return f"it has {size} bytes; at most {INDEX_MAX_BYTES} are read"
                try:
                    return read_index(path, self._store.blob(sha256).read_bytes())
                except NotAnAnswer as e:
                    return str(e)

            try:
                said = await self._threads.run(read)
            except OSError:
                return None  # it went away in this moment
            if said is None:
                return None
            self._indexes[path, sha256] = said
            while len(self._indexes) > INDEXES_REMEMBERED:
                del self._indexes[next(iter(self._indexes))]
        return self._indexes[path, sha256]
