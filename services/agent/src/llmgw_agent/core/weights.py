"""Weights by name: what a mirror lists, what this node holds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmgw_agent.core.paths import file_path
from llmgw_kit.errors import InvalidRequest

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
#: More files than any published model has; a listing beyond is a fault or an attack.
MOST_FILES = 100_000


@dataclass(frozen=True)
class WeightsKey:
    """One version of one model's files."""

    model: str
    version: str

    def __str__(self) -> str:
        return f"{self.model}@{self.version}"


@dataclass(frozen=True)
class WeightsFile:
    """`path` is relative and has passed `file_path`; `sha256` in lower-case hex."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """What a version consists of."""

    key: WeightsKey
    files: tuple[WeightsFile, ...]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(one.size for one in self.files)


@dataclass(frozen=True)
class Held:
    """A version on this node's disk. `complete`: every file is here and its checksum was seen to match."""

    key: WeightsKey
    bytes: int
    complete: bool
    fetching: bool = False
    #: 0..1 while fetching; None when unknown.
    progress: float | None = None
    #: Why the newest prefetch of it failed.
    error: str | None = None
    #: Shards started from it that have not exited.
    shard_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removal:
    """What became of a removal: a line for people, and the bytes that a second look found to be free."""

    text: str
    freed_bytes: int


def told(
    held: Sequence[Held],
    *,
    flights: Mapping[WeightsKey, float | None],
    failed: Mapping[WeightsKey, str],
    users: Mapping[WeightsKey, tuple[str, ...]],
) -> tuple[Held, ...]:
    """What is on disk with what is known beside it; also what is asked for and not on disk yet."""
    by_key = {one.key: one for one in held if not one.complete}
    by_key |= {one.key: one for one in held if one.complete}
    for key in (*flights, *failed):
        by_key.setdefault(key, Held(key, 0, complete=False))
    found = [
        replace(
            one,
            fetching=key in flights,
            progress=flights.get(key),
            error=None if one.complete else failed.get(key),
            shard_ids=users.get(key, ()),
        )
        for key, one in by_key.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.key.model, one.key.version)))


def parse_listing(body: Any, key: WeightsKey) -> Listing:
    """A mirror's answer. Raises InvalidRequest for anything that could harm: wrong names, paths that
    leave the folder, the same path twice, a file inside a file."""
    if not isinstance(body, Mapping) or body.get("model") != key.model or body.get("version") != key.version:
        raise InvalidRequest(f"the mirror's listing is not of {key}")
    files = body.get("files")
    if not isinstance(files, list) or not files or len(files) > MOST_FILES:
        raise InvalidRequest(f"the mirror lists no files of {key}, or too many")
    parsed = tuple(_file(one, key) for one in files)
    paths = {one.path for one in parsed}
    if len(paths) != len(parsed):
        raise InvalidRequest(f"the mirror lists a file of {key} twice")
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:n]) in paths for n in range(1, len(parts))):
            raise InvalidRequest(f"the mirror lists {path!r} of {key} inside a file")
    return Listing(key, tuple(sorted(parsed, key=lambda one: one.path)))


def _file(one: Any, key: WeightsKey) -> WeightsFile:
    if not isinstance(one, Mapping):
        raise InvalidRequest(f"the mirror's listing of {key} holds a {type(one).__name__}")
    path, size, sha256 = one.get("path"), one.get("size"), one.get("sha256")
    if not isinstance(path, str):
        raise InvalidRequest(f"the mirror lists a file of {key} without a path")
    file_path(path, what=f"file of {key}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidRequest(f"the mirror gives {path!r} of {key} the size {size!r}")
    if not isinstance(sha256, str) or not _SHA256.match(sha256):
        # Without a checksum nothing proves that the bytes are the right ones.
        raise InvalidRequest(f"the mirror gives {path!r} of {key} no sha256")
    return WeightsFile(path, size, sha256)
