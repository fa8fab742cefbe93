"""What is asked of the registry, and its answers as the core's types; see registry_http.py for how."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.registry_http import RegistryHttp
from llmgw_mirror.core.listed_files import ListedFile, file_rows
from llmgw_mirror.core.pages import BadPage, next_page
from llmgw_mirror.core.registry_names import file_url, info_url, is_commit, search_url, tree_url
from llmgw_mirror.core.registry_rows import (
    FoundRepository,
    NotAnAnswer,
    RepositoryListing,
    has_sizes,
    listing,
    parse,
    search_rows,
    with_rows,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A page of search results has some 100 kB; a repository of ten thousand files some 4 MB.
PAGE_MAX_BYTES = 8 * 1000 * 1000
INFO_MAX_BYTES = 12 * 1000 * 1000
#: A server's page may be shorter than what was asked for; a tree's has a thousand rows.
SEARCH_PAGES_MAX = 10
TREE_PAGES_MAX = 20
#: Above it JSON is read in a thread: the loop serves nodes meanwhile.
PARSED_HERE_BYTES = 256 * 1024


class RegistryClient:
    """Every call raises Unavailable, NotFound, Denied or InvalidRequest."""

    def __init__(self, http: RegistryHttp) -> None:
        self.http = http

    async def search(
        self, parameters: list[tuple[str, str]], *, limit: int
    ) -> tuple[list[FoundRepository], bool]:
        """So many rows at most, and whether there are more."""
        url: str | None = search_url(self.http.base_url, [*parameters, ("limit", str(limit))])
        rows: list[FoundRepository] = []
        visited: set[str] = set()
        while url is not None:
            visited.add(url)
            got = await self.http.get(url, what="the search", most_bytes=PAGE_MAX_BYTES)
            page = await self._read(got.body, "the search", lambda value: search_rows(value, most=limit + 1))
            rows += page[: limit + 1 - len(rows)]
            try:
                url = next_page(got.link, here=url, visited=visited, most=SEARCH_PAGES_MAX)
            except BadPage as e:
                # What came stands; a list cut short says that there is more.
                log.warning("search of the registry ends early: %s", e)
                return rows[:limit], True
            if len(rows) >= limit:
                return rows[:limit], len(rows) > limit or url is not None
        return rows, False

    async def listing(self, repository: str, revision: str) -> RepositoryListing:
        """All files at the commit that the revision is now."""
        url = info_url(self.http.base_url, repository, revision)
        got = await self.http.get(url, what=repository, most_bytes=INFO_MAX_BYTES)
        value, found = await self._read(
            got.body, repository, lambda value: (value, listing(value, asked=repository))
        )
        if is_commit(revision) and found.commit != revision.lower():
            raise self.http.misspoke(
                f"{repository} was asked for at {revision[:12]} and came at another commit"
            )
        if has_sizes(value):
            return found
        # An older server gives bare names here, and the rest in the tree.
        return with_rows(found, *await self._tree(repository, found.commit))

    async def _tree(self, repository: str, commit: str) -> tuple[Any, ...]:
        rows: list[Any] = []
        visited: set[str] = set()
        url: str | None = tree_url(self.http.base_url, repository, commit)
        while url is not None:
            visited.add(url)
            got = await self.http.get(url, what=f"the tree of {repository}", most_bytes=PAGE_MAX_BYTES)
            rows += await self._read(got.body, f"the tree of {repository}", _rows)
            try:
                url = next_page(got.link, here=url, visited=visited, most=TREE_PAGES_MAX)
            except BadPage as e:
                # Half a listing would look like a repository without the other half.
                raise self.http.misspoke(f"the tree of {repository} cannot be read to its end: {e}") from None
        return file_rows(rows, name="path")

    async def content(self, repository: str, commit: str, file: ListedFile, *, most_bytes: int) -> bytes:
        """A small file, proved by what the listing says of it."""
        url = file_url(self.http.base_url, repository, commit, file.path)
        got = await self.http.get(url, what=f"{file.path} of {repository}", most_bytes=most_bytes)
        if not _is(file, got.body):
            raise Unavailable(
                f"{file.path} of {repository} is not what its listing says",
                code="content_differs",
                next_steps=["ask again; if it stays so, see what stands between the mirror and the registry"],
            )
        return got.body

    async def json(self, repository: str, commit: str, file: ListedFile, *, most_bytes: int) -> Any:
        """The same, read as JSON. Raises NotAnAnswer besides."""
        body = await self.content(repository, commit, file, most_bytes=most_bytes)
        return await asyncio.to_thread(parse, body) if len(body) > PARSED_HERE_BYTES else parse(body)

    async def _read(self, body: bytes, what: str, decode: Callable[[Any], T]) -> T:
        try:
            if len(body) > PARSED_HERE_BYTES:
                return await asyncio.to_thread(lambda: decode(parse(body)))
            return decode(parse(body))
        except NotAnAnswer as e:
            raise self.http.misspoke(f"asked for {what}: {e}") from None


def _rows(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise NotAnAnswer("it is no list of files")
    return value


def _is(file: ListedFile, body: bytes) -> bool:
    if file.sha256 is not None:
        return hashlib.sha256(body).hexdigest() == file.sha256
    if file.git_id is not None:
        named = b"blob %d\0" % len(body)
        return hashlib.sha1(named + body, usedforsecurity=False).hexdigest() == file.git_id
    return file.size_bytes in (None, len(body))
