"""Models found in the registry: searched for, and one repository's files as choices with what will break."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgw_kit.errors import InvalidRequest, NotConfigured
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.registry_client import RegistryClient
from llmgw_mirror.adapters.registry_http import RegistryState
from llmgw_mirror.adapters.space import Space, space_for
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core import warnings
from llmgw_mirror.core.file_groups import FileGroup, companions, grouped
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.registry_names import check_repository, check_revision, is_commit
from llmgw_mirror.core.registry_rows import FoundRepository, RepositoryListing
from llmgw_mirror.core.versions import Repository, VersionView, WeightsState
from llmgw_mirror.core.warnings import GpuClass, Warning
from llmgw_mirror.core.weight_index import mismatches, unread_for
from llmgw_mirror.service import Mirror
from llmgw_mirror.small_files import SmallFiles, SmallFilesReader

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


@dataclass(frozen=True)
class Found:
    """A row of a search, and the versions of it that are here."""

    row: FoundRepository
    versions_here: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """One repository at one commit. `about`: warnings by name of group; `version_here`: by name of
    group, a version that has all of it."""

    repository: Repository
    listing: RepositoryListing
    groups: tuple[FileGroup, ...]
    companions: tuple[ListedFile, ...]
    warnings: tuple[Warning, ...]
    about: Mapping[str, tuple[Warning, ...]]
    version_here: Mapping[str, str]
    space: Space


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
        self._small = None if registry is None else SmallFilesReader(registry)

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
            raise InvalidRequest(
                f"limit is {count}; expected 1 to {LIMIT_MAX}",
                next_steps=["ask for fewer, and narrow the words"],
            )
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
        # Thousands of names against the table of formats: the loop serves nodes meanwhile.
        groups = await asyncio.to_thread(grouped, listing.files)
        assert self._small is not None, "there is a registry"
        small = await self._small.read(at, listing, groups)
        space = await self._threads.run(space_for, self._store, listing.files)
        listed = frozenset(file.path for file in listing.files)
        grant = small.grant if registry.http.has_token else False
        return Look(
            repository=at, listing=listing, groups=groups, companions=companions(listing.files),
            warnings=warnings.of_repository(listing, asked=repository, grant=grant, code=small.code),
            about=await asyncio.to_thread(
                self._about, groups, small, listed, fleet, space
            ),
            version_here=_versions_here(at, groups, await self._mirror.versions()),
            space=space,
        )  # fmt: skip

    def _about(
        self, groups: Sequence[FileGroup], small: SmallFiles, listed: frozenset[str],
        fleet: Sequence[GpuClass], space: Space,
    ) -> Mapping[str, tuple[Warning, ...]]:  # fmt: skip
        safe = warnings.safe_groups(groups)
        about: dict[str, tuple[Warning, ...]] = {}
        for group in groups:
            told = warnings.of_group(
                group, safe=safe, fleet=fleet,
                found=mismatches(group, small.indexes, listed),
                unread=unread_for(group, small.unread),
            )  # fmt: skip
            come = to_come(group.files, space.here)
            room = warnings.disk(come, space.usable_bytes, self._reserve_bytes)
            about[group.name] = told if room is None else (*told, room)
        return about


def to_come(files: Sequence[ListedFile], here: frozenset[str]) -> int | None:
    """Bytes that are not here yet; None while one size is unknown. One content under two names comes once."""
    absent = {file.sha256 or file.path: file.size_bytes for file in files if file.path not in here}
    sizes = absent.values()
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _parameters(
    words: str, author: str | None, filters: Sequence[str], sort: str | None
) -> list[tuple[str, str]]:
    for what, text in (("words", words), ("author", author or ""), *(("a filter", one) for one in filters)):
        if len(text) > WORDS_MAX_CHARS or not text.isprintable():
            raise InvalidRequest(
                f"{what}: at most {WORDS_MAX_CHARS} printable characters are taken", next_steps=["shorten it"]
            )
    if len(filters) > FILTERS_MAX:
        raise InvalidRequest(
            f"{len(filters)} filters; at most {FILTERS_MAX} are taken",
            next_steps=["take the narrowest of them"],
        )
    order = sort or "downloads"
    if order not in SORTS:
        raise InvalidRequest(
            f"sort {order[:40]!r} is not known; expected one of {', '.join(SORTS)}",
            next_steps=["name one of those, or none"],
        )
    given = [("search", words.strip()), ("author", author or ""), *(("filter", one) for one in filters)]
    return [
        *((name, text) for name, text in given if text),
        ("sort", SORTS[order]), ("direction", "-1"), *(("expand", field) for field in EXPANDED),
    ]  # fmt: skip


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
