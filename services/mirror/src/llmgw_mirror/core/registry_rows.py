"""What the registry's API says, read row by row: one odd row is odd, the others stand (M20).

Nothing is assumed of a value but that JSON had it. What cannot be used is None with a reason beside it.
Names of fields and their traps: the Hub's protocol as its clients use it (docs/adr/0030).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.listed_files import ListedFile, OddFile, file_rows
from llmgw_mirror.core.odd_values import WORD_MAX_CHARS, count, kind, word
from llmgw_mirror.core.registry_names import COMMIT, check_repository

TAGS_MAX = 100
#: Of one JSON text: as objects they have up to a hundred times its bytes. A listing of ten thousand files has
#: some hundred thousand, an index of the largest model as many.
VALUES_MAX = 1_000_000


class NotAnAnswer(ValueError):
    """What came is not what such an answer looks like."""


@dataclass(frozen=True)
class FoundRepository:
    """One row of a search. `odd`: why it could not be read; then only `id` may be of use. `gated`: the
    registry's own word, None when open. `modified`: seconds since 1970."""

    id: str
    odd: str | None = None
    gated: str | None = None
    private: bool = False
    downloads: int | None = None
    likes: int | None = None
    modified: float | None = None
    pipeline_tag: str | None = None
    library: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepositoryListing:
    """A repository at one commit. `paths`: every name that was listed, odd ones too; None when not all of
    them were read."""

    id: str
    commit: str
    files: tuple[ListedFile, ...]
    odd: tuple[OddFile, ...]
    paths: frozenset[str] | None
    gated: str | None = None
    private: bool = False
    license: str | None = None
    parameters: int | None = None


def parse(body: bytes) -> Any:
    """JSON, whatever it holds. Raises NotAnAnswer."""
    # In the text, strings included: an upper bound that costs next to nothing.
    if (values := sum(body.count(mark) for mark in (b",", b"[", b"{"))) > VALUES_MAX:
        raise NotAnAnswer(f"it is JSON of some {values} values; at most {VALUES_MAX} are read")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:
        raise NotAnAnswer(f"it is no JSON ({str(e)[:WORD_MAX_CHARS]})") from None


def search_rows(value: Any, *, most: int) -> list[FoundRepository]:
    """Each row by itself, `most` of them. Raises NotAnAnswer when there are no rows at all."""
    if not isinstance(value, list):
        raise NotAnAnswer(f"it is {kind(value)} where a list of repositories was expected")
    return [_found(row) for row in value[:most]]


def _found(row: Any) -> FoundRepository:
    if not isinstance(row, Mapping):
        return FoundRepository("", odd=f"the registry sent {kind(row)} in place of a repository")
    name = row.get("id", row.get("modelId"))
    if not isinstance(name, str):
        return FoundRepository("", odd=f"its id is {kind(name)}")
    try:
        check_repository(name)
    except InvalidRequest as e:
        return FoundRepository(word(name) or "", odd=e.text)
    tags = row.get("tags")
    return FoundRepository(
        name,
        gated=gated_word(row.get("gated")),
        private=row.get("private") is True,
        downloads=count(row.get("downloads")),
        likes=count(row.get("likes")),
        modified=_time(row.get("lastModified")),
        pipeline_tag=word(row.get("pipeline_tag")),
        library=word(row.get("library_name")),
        tags=tuple(one for tag in tags[:TAGS_MAX] if (one := word(tag))) if isinstance(tags, list) else (),
    )


def gated_word(value: Any) -> str | None:
    """None: open. The Hub says false, "auto" or "manual", older servers true, and nobody knows who says what
    next (H16): whatever it is, it is no door that stands open."""
    if value is None or value is False or value == "":
        return None
    if isinstance(value, str):
        return word(value) or "odd"
    return "true" if value is True else "odd"


def listing(value: Any, *, asked: str) -> RepositoryListing:
    """`revision` info with blobs. Raises NotAnAnswer when it names no commit or no files."""
    if not isinstance(value, Mapping):
        raise NotAnAnswer(f"it is {kind(value)} where a repository was expected")
    commit = value.get("sha")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise NotAnAnswer("it names no commit (sha) of 40 hexadecimal digits")
    rows = value.get("siblings")
    if not isinstance(rows, list):
        raise NotAnAnswer(f"its files (siblings) are {kind(rows)}")
    files, odd, paths = file_rows(rows, name="rfilename")
    name = value.get("id", value.get("modelId"))
    card, tensors = value.get("cardData"), value.get("safetensors")
    return RepositoryListing(
        name if _is_repository(name) else asked,
        commit,
        files,
        odd,
        paths,
        gated=gated_word(value.get("gated")),
        private=value.get("private") is True,
        license=_license(card) if isinstance(card, Mapping) else None,
        parameters=count(tensors.get("total")) if isinstance(tensors, Mapping) else None,
    )


def has_sizes(value: Any) -> bool:
    """Whether `revision` info came with blobs: without them, rows are bare names."""
    rows = value.get("siblings") if isinstance(value, Mapping) else None
    return not rows or any(isinstance(row, Mapping) and "size" in row for row in rows)


def with_rows(
    found: RepositoryListing,
    files: tuple[ListedFile, ...],
    odd: tuple[OddFile, ...],
    paths: frozenset[str] | None,
) -> RepositoryListing:
    """The same repository with its files from elsewhere."""
    return replace(found, files=files, odd=odd, paths=paths)


def _license(card: Mapping[str, Any]) -> str | None:
    name = card.get("license_name") if card.get("license") == "other" else card.get("license")
    if isinstance(name, list):
        return word(", ".join(said for one in name[:5] if (said := word(one))))
    return word(name)


def _is_repository(name: Any) -> bool:
    try:
        return isinstance(name, str) and bool(check_repository(name))
    except InvalidRequest:
        return False


def _time(value: Any) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
