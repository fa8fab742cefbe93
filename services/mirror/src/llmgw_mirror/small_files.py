"""Small files of a repository that tell what its weights need: indexes and config.json, read at the commit.

What they say never changes, so it is remembered; that one could not be read is not."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_kit.errors import Denied, LlmgwError
from llmgw_mirror.adapters.registry_client import RegistryClient
from llmgw_mirror.core.file_groups import FileGroup
from llmgw_mirror.core.listed_files import ListedFile
from llmgw_mirror.core.registry_rows import NotAnAnswer, RepositoryListing
from llmgw_mirror.core.versions import Repository
from llmgw_mirror.core.warnings import CodeNamed
from llmgw_mirror.core.weight_index import INDEX_MAX_BYTES, ShardIndex, named_files, worth_reading

log = logging.getLogger(__name__)

#: Indexes of one listing that are read; beyond, they are named as unread.
INDEXES_READ_MAX = 16
CONFIG = "config.json"
CONFIG_MAX_BYTES = 1_000_000
#: By repository, commit and path, the oldest forgotten first.
REMEMBERED = 256


@dataclass(frozen=True)
class SmallFiles:
    """`unread`: indexes that could not be read, by path, each with why. `grant`: whether the registry gave
    this mirror any of it; None: nothing was asked for or answered."""

    code: CodeNamed
    indexes: tuple[ShardIndex, ...]
    unread: dict[str, str]
    grant: bool | None


class SmallFilesReader:
    """One for all listings."""

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._remembered: dict[tuple[str, str, str], ShardIndex | CodeNamed] = {}

    async def read(
        self, at: Repository, listing: RepositoryListing, groups: Sequence[FileGroup]
    ) -> SmallFiles:
        """All at once: a registry that gives none of them costs one time-out. Raises nothing."""
        files = {file.path: file for file in listing.files}
        paths = worth_reading(files, groups)
        unread = dict.fromkeys(paths[INDEXES_READ_MAX:], "there are too many of them")
        code, *read = await asyncio.gather(
            self._code(at, files.get(CONFIG)),
            *(self._index(at, files[path]) for path in paths[:INDEXES_READ_MAX]),
        )
        refused = _refused(code)
        indexes = []
        for path, one in zip(paths, read, strict=False):
            if isinstance(one, ShardIndex):
                indexes.append(one)
            else:
                unread[path] = f"{path}: {one}"
                refused = refused or _refused(one)
        answered = bool(indexes) or (CONFIG in files and isinstance(code, CodeNamed))
        if not isinstance(code, CodeNamed):
            code = CodeNamed(None, str(code))
        return SmallFiles(code, tuple(indexes), unread, False if refused else True if answered else None)

    async def _code(self, at: Repository, config: ListedFile | None) -> CodeNamed | Exception:
        if config is None:
            return CodeNamed(needed=False)
        key = (at.id, at.commit, config.path)
        if isinstance(known := self._remembered.get(key), CodeNamed):
            return known
        try:
            value = await self._registry.json(at.id, at.commit, config, most_bytes=CONFIG_MAX_BYTES)
        except (LlmgwError, NotAnAnswer) as e:
            return e
        named = CodeNamed(needed=isinstance(value, dict) and bool(value.get("auto_map")))
        self._remember(key, named)
        return named

    async def _index(self, at: Repository, file: ListedFile) -> ShardIndex | Exception:
        key = (at.id, at.commit, file.path)
        if isinstance(known := self._remembered.get(key), ShardIndex):
            return known
        try:
            value = await self._registry.json(at.id, at.commit, file, most_bytes=INDEX_MAX_BYTES)
            index = named_files(file.path, value)
        except (LlmgwError, NotAnAnswer) as e:
            return e
        self._remember(key, index)
        return index

    def _remember(self, key: tuple[str, str, str], value: ShardIndex | CodeNamed) -> None:
        self._remembered[key] = value
        while len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


def _refused(said: object) -> bool:
    return isinstance(said, Denied) and said.code == "gated"
