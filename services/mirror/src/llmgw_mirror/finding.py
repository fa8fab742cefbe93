"""Models found in the registry: searched for, and one repository's files as choices with what will break."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest, LlmgwError, NotConfigured
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.registry_client import RegistryClient
from llmgw_mirror.adapters.registry_http import RegistryState
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core import warnings
from llmgw_mirror.core.file_groups import FileGroup, companions, grouped
from llmgw_mirror.core.registry_names import check_repository, check_revision, is_commit
from llmgw_mirror.core.registry_rows import FoundRepository, ListedFile, NotAnAnswer, RepositoryListing
from llmgw_mirror.core.versions import Repository, VersionView, WeightsState
from llmgw_mirror.core.warnings import CodeNamed, GpuClass, Warning
from llmgw_mirror.core.weight_index import (
    INDEX_MAX_BYTES,
    ShardIndex,
    belongs,
    compared,
    named_files,
    worth_reading,
)
from llmgw_mirror.service import Mirror

log = logging.getLogger(__name__)

LIMIT_USUAL, LIMIT_MAX = 20, 100
WORDS_MAX_CHARS, FILTERS_MAX = 200, 20
#: The registry's names of what we sort by.
SORTS = {
    "downloads": "downloads", "likes": "likes", "modified": "lastModified", "created": "createdAt",
    "trending": "trendingScore",
}  # fmt: skip
#: Fields that a bare row lacks; a full one would carry every repository's file names.
EXPANDED = (
    "gated", "private", "downloads", "likes", "lastModified", "pipeline_tag", "library_name", "tags",
)  # fmt: skip
#: Small files of one listing that are read; beyond, they are named as unread.
INDEXES_READ_MAX = 16
CONFIG_MAX_BYTES = 1_000_000
#: What small files said, by repository, commit and path: that never changes.
REMEMBERED = 256


@dataclass(frozen=True)
class Found:
    """A row of a search, and the versions of it that are here."""

    row: FoundRepository
    versions_here: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """One repository at one commit. `about`: warnings by name of group; `here`: bytes need not come for these
    files; `version_here`: by name of group, a version that has all of it."""

    repository: Repository
    listing: RepositoryListing
    groups: tuple[FileGroup, ...]
    companions: tuple[ListedFile, ...]
    warnings: tuple[Warning, ...]
    about: Mapping[str, tuple[Warning, ...]]
    version_here: Mapping[str, str]
    disk_free_bytes: int


class Finding:
    """`registry` None: none is configured, and every call but `state` says so."""

    def __init__(
        self, *, registry: RegistryClient | None, mirror: Mirror, store: Store, threads: DiskThreads,
        reserve_bytes: int,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._mirror = mirror
        self._store = store
        self._threads = threads
        self._reserve_bytes = reserve_bytes
        self._remembered: OrderedDict[tuple[str, str, str], ShardIndex | CodeNamed] = OrderedDict()

    @property
    def registry(self) -> RegistryClient:
        """Raises NotConfigured."""
        if self._registry is None:
            raise NotConfigured(
                "this mirror has no registry to look in",
                code="no_registry",
                next_steps=["set registry_url to the base URL of one", "or fetch by naming each file's URL"],
            )
        return self._registry

    def state(self) -> RegistryState | None:
        """None: none is configured. Never asks it."""
        return None if self._registry is None else self._registry.http.state()

    async def search(
        self, words: str, *, author: str | None = None, filters: Sequence[str] = (), sort: str | None = None,
        limit: int | None = None,
    ) -> tuple[list[Found], bool]:  # fmt: skip
        """Rows, odd ones too, and whether there are more. Raises as the registry does, and InvalidRequest."""
        registry = self.registry
        parameters = _parameters(words, author, filters, sort)
        count = LIMIT_USUAL if limit is None else limit
        if not 1 <= count <= LIMIT_MAX:
            raise InvalidRequest(f"limit is {count}; expected 1 to {LIMIT_MAX}")
        rows, more = await registry.search(parameters, limit=count)
        here: dict[str, list[str]] = {}
        for view in await self._mirror.versions():
            if view.repository is not None and view.state is WeightsState.PRESENT:
                here.setdefault(view.repository.id, []).append(version_label(view))
        return [Found(row, tuple(here.get(row.id, ()))) for row in rows], more

    async def look(self, repository: str, revision: str | None, fleet: Sequence[GpuClass] = ()) -> Look:
        """A repository's files at the commit that the revision is now; `main` unless given."""
        registry = self.registry
        check_repository(repository)
        asked = check_revision("main" if revision is None else revision)
        listing = await registry.listing(repository, asked)
        at = Repository(repository, listing.commit, None if is_commit(asked) else asked)
        groups = grouped(listing.files)
        code, (indexes, unread) = await asyncio.gather(
            self._code(at, listing), self._indexes(at, listing, groups)
        )
        free_bytes = (await self._threads.run(self._store.disk))[1]
        about: dict[str, tuple[Warning, ...]] = {}
        for group in groups:
            mismatches = [
                found
                for index in indexes
                if belongs(index.path, group)
                and (found := compared(index, group, _names(listing))) is not None
            ]
            told = warnings.of_group(
                group, others=[one for one in groups if one is not group], mismatches=mismatches,
                unread=[why for path, why in unread.items() if belongs(path, group)], fleet=fleet,
            )  # fmt: skip
            room = warnings.disk(await self.to_come(group.files), free_bytes, self._reserve_bytes)
            about[group.name] = told if room is None else (*told, room)
        return Look(
            repository=at, listing=listing, groups=groups, companions=companions(listing.files),
            warnings=warnings.of_repository(
                listing, asked=repository, has_token=registry.http.has_token, code=code
            ),
            about=about, version_here=_versions_here(at, groups, await self._mirror.versions()),
            disk_free_bytes=free_bytes,
        )  # fmt: skip

    async def to_come(self, files: Sequence[ListedFile], *, here: frozenset[str] = frozenset()) -> int | None:
        """Bytes that are not in the store yet; None while one size is unknown. `here`: paths that are."""
        absent: dict[str, int] = {}
        for file in files:
            if file.path in here or await self._has(file):
                continue
            if file.size_bytes is None:
                return None
            # One content under two names comes once.
            absent[file.sha256 or file.path] = file.size_bytes
        return sum(absent.values())

    async def _has(self, file: ListedFile) -> bool:
        return (
            file.sha256 is not None
            and await self._threads.run(self._store.blob_size, file.sha256) is not None
        )

    async def _code(self, at: Repository, listing: RepositoryListing) -> CodeNamed:
        """Whether config.json names code of the repository."""
        config = next((file for file in listing.files if file.path == "config.json"), None)
        if config is None:
            return CodeNamed(needed=False)
        known = self._remembered.get((at.id, at.commit, config.path))
        if isinstance(known, CodeNamed):
            return known
        try:
            value = await self.registry.json(at.id, at.commit, config, most_bytes=CONFIG_MAX_BYTES)
        except (LlmgwError, NotAnAnswer) as e:
            return CodeNamed(None, str(e))
        named = CodeNamed(needed=isinstance(value, dict) and bool(value.get("auto_map")))
        self._remember((at.id, at.commit, config.path), named)
        return named

    async def _indexes(
        self, at: Repository, listing: RepositoryListing, groups: Sequence[FileGroup]
    ) -> tuple[list[ShardIndex], dict[str, str]]:
        """Those that could be read, and why the others could not, by path. All at once: a registry that gives
        none of them costs one time-out."""
        files = {file.path: file for file in listing.files}
        paths = worth_reading(files, groups)
        unread = dict.fromkeys(paths[INDEXES_READ_MAX:], "there are too many of them")
        indexes: list[ShardIndex] = []

        async def read(path: str) -> None:
            known = self._remembered.get((at.id, at.commit, path))
            if isinstance(known, ShardIndex):
                indexes.append(known)
                return
            try:
                value = await self.registry.json(at.id, at.commit, files[path], most_bytes=INDEX_MAX_BYTES)
                index = named_files(path, value)
            except (LlmgwError, NotAnAnswer) as e:
                unread[path] = f"{path}: {e}"
                return
            self._remember((at.id, at.commit, path), index)
            indexes.append(index)

        await asyncio.gather(*(read(path) for path in paths[:INDEXES_READ_MAX]))
        return sorted(indexes, key=lambda index: index.path), unread

    def _remember(self, key: tuple[str, str, str], value: ShardIndex | CodeNamed) -> None:
        self._remembered[key] = value
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)


def _parameters(
    words: str, author: str | None, filters: Sequence[str], sort: str | None
) -> list[tuple[str, str]]:
    for what, text in (("words", words), ("author", author or ""), *(("a filter", one) for one in filters)):
        if len(text) > WORDS_MAX_CHARS or not text.isprintable():
            raise InvalidRequest(f"{what}: at most {WORDS_MAX_CHARS} printable characters are taken")
    if len(filters) > FILTERS_MAX:
        raise InvalidRequest(f"{len(filters)} filters; at most {FILTERS_MAX} are taken")
    order = sort or "downloads"
    if order not in SORTS:
        raise InvalidRequest(f"sort {order[:40]!r} is not known; expected one of {', '.join(SORTS)}")
    given = [("search", words.strip()), ("author", author or ""), *(("filter", one) for one in filters)]
    return [
        *((name, text) for name, text in given if text),
        ("sort", SORTS[order]), ("direction", "-1"), *(("expand", field) for field in EXPANDED),
    ]  # fmt: skip


def _names(listing: RepositoryListing) -> frozenset[str]:
    return frozenset(file.path for file in listing.files)


def version_label(view: VersionView) -> str:
    """A version's name, with its model's where that is not the repository's id."""
    own = view.repository is not None and view.repository.id == view.model
    return view.version if own else f"{view.model}@{view.version}"


def _versions_here(
    at: Repository, groups: Sequence[FileGroup], versions: Sequence[VersionView]
) -> Mapping[str, str]:
    """Whole versions of this commit, by the group that they have all of."""
    found: dict[str, str] = {}
    for view in versions:
        place = view.repository
        if (
            place is None
            or (place.id, place.commit) != (at.id, at.commit)
            or view.state is not WeightsState.PRESENT
        ):
            continue
        paths = {file.source.path for file in view.files}
        for group in groups:
            if group.paths <= paths:
                found.setdefault(group.name, version_label(view))
    return found
