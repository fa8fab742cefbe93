"""What is here, as its callers know it: listed with who reads it and what is odd, found by short names."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.history import Entry
from llmgw_mirror.core.indexes import INDEX_MAX_BYTES, is_index, lacking, named_shards
from llmgw_mirror.core.resolving import by_name, by_place
from llmgw_mirror.core.versions import VersionView
from llmgw_mirror.ports import History
from llmgw_mirror.removing import Removing
from llmgw_mirror.service import Mirror
from llmgw_mirror.verifying import Verifying

#: Lines of history: unless asked otherwise, and at most.
HISTORY_USUAL, HISTORY_MOST = 100, 1000


@dataclass(frozen=True)
class Described:
    """A version, who reads it now, and the files that its indexes name and it lacks, by index."""

    view: VersionView
    readers: tuple[str, ...] = ()
    lacking: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Keeping:
    """Of one mirror process."""

    def __init__(
        self, *, mirror: Mirror, store: Store, threads: DiskThreads, reads: OpenReads, history: History,
        removing: Removing, verifying: Verifying,
    ) -> None:  # fmt: skip
        self._mirror = mirror
        self._store = store
        self._threads = threads
        self._reads = reads
        self._history = history
        self.removing = removing
        self.verifying = verifying
        #: What indexes name, by content; content never changes.
        self._named: dict[tuple[str, str], frozenset[str]] = {}

    async def versions(self, model: str | None = None) -> list[Described]:
        """All, or those of one model."""
        return [await self.described(view) for view in await self._mirror.versions(model)]

    async def described(self, view: VersionView) -> Described:
        """With what is known beside its files' states."""
        readers = self._reads.peers_of(file.sha256 for file in view.files if file.sha256 is not None)
        paths = [file.source.path for file in view.files]
        found = []
        for file in view.files:
            if file.sha256 is not None and is_index(file.source.path):
                missing = lacking(await self._shards(file.source.path, file.sha256), paths)
                if missing:
                    found.append((file.source.path, tuple(missing)))
        return Described(view, tuple(readers), tuple(found))

    async def resolve(
        self, *, model: str | None, version: str | None, repository: str | None, revision: str | None
    ) -> Described:
        """The one version that is meant. Raises InvalidRequest, NotFound, Conflict."""
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
            raise InvalidRequest(f"limit is {count}; expected 1 to {HISTORY_MOST}")
        return await self._history.newest(model=model, version=version, since=since, limit=count)

    async def disk(self) -> tuple[int, int]:
        """Total and free bytes."""
        return await self._mirror.disk()

    async def _shards(self, path: str, sha256: str) -> frozenset[str]:
        """What an index names; nothing when it cannot be read as one."""
        if (path, sha256) not in self._named:

            def read() -> frozenset[str]:
                size = self._store.blob_size(sha256)
                if size is None or size > INDEX_MAX_BYTES:
                    return frozenset()
                return named_shards(path, self._store.blob(sha256).read_bytes()) or frozenset()

            try:
                self._named[path, sha256] = await self._threads.run(read)
            except OSError:
                return frozenset()  # it went away in this moment
        return self._named[path, sha256]
