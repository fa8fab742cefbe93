"""What the registry's API says, read row by row: one odd row is odd, the others stand (M20).

Nothing is assumed of a value but that JSON had it. What cannot be used is None with a reason beside it.
Names of fields and their traps: the Hub's protocol as its clients use it (docs/adr/0030).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from llmgw_kit.errors import InvalidRequest
from llmgw_kit.text import shortened, visible
from llmgw_mirror.core.names import check_path, folded
from llmgw_mirror.core.registry_names import COMMIT, check_repository
from llmgw_mirror.core.versions import FILES_MAX, SHA256
from llmgw_mirror.core.weight_files import is_weight

#: Words of others that are shown are cut to this.
WORD_MAX_CHARS = 100
TAGS_MAX = 100
#: A pointer that git keeps in place of an LFS file: three lines of fixed words, a hash and a number of
#: digits. Its length shows up as a file's size where git's plumbing leaks.
POINTER_BYTES = range(124, 141)
SIZE_MAX = 2**63 - 1


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
class ListedFile:
    """A file of a repository at one commit. `size_bytes`: the real one, None when none can be used;
    `sha256`: the published one; `git_id`: only of a file outside LFS, for of others it is the pointer's.
    `odd`: what of the row was not usable."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    git_id: str | None = None
    odd: str | None = None


@dataclass(frozen=True)
class OddFile:
    """A row that is not offered, and why."""

    path: str
    why: str


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
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:
        raise NotAnAnswer(f"it is no JSON ({str(e)[:WORD_MAX_CHARS]})") from None


def search_rows(value: Any, *, most: int) -> list[FoundRepository]:
    """Each row by itself, `most` of them. Raises NotAnAnswer when there are no rows at all."""
    if not isinstance(value, list):
        raise NotAnAnswer(f"it is {_kind(value)} where a list of repositories was expected")
    return [_found(row) for row in value[:most]]


def _found(row: Any) -> FoundRepository:
    if not isinstance(row, Mapping):
        return FoundRepository("", odd=f"the registry sent {_kind(row)} in place of a repository")
    name = row.get("id", row.get("modelId"))
    if not isinstance(name, str):
        return FoundRepository("", odd=f"its id is {_kind(name)}")
    try:
        check_repository(name)
    except InvalidRequest as e:
        return FoundRepository(_word(name) or "", odd=e.text)
    tags = row.get("tags")
    return FoundRepository(
        name,
        gated=gated_word(row.get("gated")),
        private=row.get("private") is True,
        downloads=_count(row.get("downloads")),
        likes=_count(row.get("likes")),
        modified=_time(row.get("lastModified")),
        pipeline_tag=_word(row.get("pipeline_tag")),
        library=_word(row.get("library_name")),
        tags=tuple(word for tag in tags[:TAGS_MAX] if (word := _word(tag))) if isinstance(tags, list) else (),
    )


def gated_word(value: Any) -> str | None:
    """None: open. The Hub says false, "auto" or "manual", older servers true, and nobody knows who says what
    next (H16): whatever it is, it is no door that stands open."""
    if value is None or value is False or value == "":
        return None
    if isinstance(value, str):
        return _word(value) or "odd"
    return "true" if value is True else "odd"


def listing(value: Any, *, asked: str) -> RepositoryListing:
    """`revision` info with blobs. Raises NotAnAnswer when it names no commit or no files."""
    if not isinstance(value, Mapping):
        raise NotAnAnswer(f"it is {_kind(value)} where a repository was expected")
    commit = value.get("sha")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise NotAnAnswer("it names no commit (sha) of 40 hexadecimal digits")
    rows = value.get("siblings")
    if not isinstance(rows, list):
        raise NotAnAnswer(f"its files (siblings) are {_kind(rows)}")
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
        parameters=_count(tensors.get("total")) if isinstance(tensors, Mapping) else None,
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
        return _word(", ".join(word for one in name[:5] if (word := _word(one))))
    return _word(name)


def file_rows(
    rows: Sequence[Any], *, name: str
) -> tuple[tuple[ListedFile, ...], tuple[OddFile, ...], frozenset[str] | None]:
    """Files by path, rows that are not offered, and all names. `name`: the key of the path, which differs
    between siblings (rfilename) and tree (path)."""
    files: dict[str, ListedFile] = {}
    odd: list[OddFile] = []
    names: set[str] = set()
    for number, row in enumerate(rows[:FILES_MAX], 1):
        if isinstance(row, Mapping) and row.get("type") == "directory":
            continue
        path = row.get(name) if isinstance(row, Mapping) else None
        if not isinstance(path, str):
            odd.append(OddFile(f"row {number}", f"the registry sent {_kind(row)} without a path"))
            continue
        shown = shortened(visible(path), most=WORD_MAX_CHARS)
        names.add(visible(path))
        if path in files:
            odd.append(OddFile(shown, "it is listed twice; the first row stands"))
            continue
        try:
            check_path(path)
        except InvalidRequest as e:
            odd.append(OddFile(shown, e.text))
            continue
        assert isinstance(row, Mapping)
        files[path] = _file(path, row)
    kept, twins = _without_twins(files)
    odd += twins
    if len(rows) > FILES_MAX:
        more = len(rows) - FILES_MAX
        odd.append(OddFile(f"{more} rows more", f"only the first {FILES_MAX} of a repository are read"))
        return kept, tuple(odd), None
    return kept, tuple(odd), frozenset(names)


def _file(path: str, row: Mapping[str, Any]) -> ListedFile:
    """Sizes and checksums, with the traps of both kinds of rows."""
    lfs, own = row.get("lfs"), row.get("size")
    if isinstance(lfs, Mapping):
        # Called sha256 in siblings, oid in tree rows; the row's own oid is the pointer's git id.
        sha256, why_sum = _sha256(lfs.get("sha256", lfs.get("oid")))
        size, why_size = _size(lfs.get("size", own))
        if size is not None and size == lfs.get("pointerSize"):
            size, why_size = None, f"its size, {size}, is that of its LFS pointer"
        return ListedFile(path, size, sha256, None, why_size or why_sum)
    size, why = _size(own)
    if size in POINTER_BYTES and is_weight(path):
        return ListedFile(path, None, None, None, f"its size, {size}, is that of an LFS pointer")
    git_id = row.get("blobId", row.get("oid"))
    fine = isinstance(git_id, str) and COMMIT.fullmatch(git_id)
    return ListedFile(path, size, None, git_id if fine else None, why)


def _size(value: Any) -> tuple[int | None, str | None]:
    if value is None:
        return None, "the registry names no size"
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SIZE_MAX:
        return None, f"its size is {_kind(value)}"
    return value, None


def _sha256(value: Any) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    if isinstance(value, str) and SHA256.fullmatch(text := value.lower().removeprefix("sha256:")):
        return text, None
    return None, "its checksum is no sha256"


def _without_twins(
    files: Mapping[str, ListedFile],
) -> tuple[tuple[ListedFile, ...], list[OddFile]]:
    """Of names that are one where case does not count, one stays; a name that others need as a folder goes.

    Loaders ask for names in lower case, so that is the one which stays."""
    by_fold: dict[str, list[str]] = {}
    for path in files:
        by_fold.setdefault(folded(path), []).append(path)
    folders = {
        "/".join(parts[:n]) for f in by_fold for parts in (f.split("/"),) for n in range(1, len(parts))
    }
    kept: list[ListedFile] = []
    odd: list[OddFile] = []
    for fold, paths in sorted(by_fold.items()):
        first, *others = sorted(paths, key=lambda path: (path != fold, path))
        odd += [OddFile(path, f"it is one with {first!r} where case does not count") for path in others]
        if fold in folders:
            odd.append(OddFile(first, "it is a file, and others need it as a folder"))
        else:
            kept.append(files[first])
    return tuple(sorted(kept, key=lambda file: file.path)), odd


def _is_repository(name: Any) -> bool:
    try:
        return isinstance(name, str) and bool(check_repository(name))
    except InvalidRequest:
        return False


def _word(value: Any) -> str | None:
    """What others wrote, fit to be shown; None for all that is no text."""
    if not isinstance(value, str) or not value.strip():
        return None
    return shortened(re.sub(r"\s+", " ", visible(value[: 4 * WORD_MAX_CHARS])).strip(), most=WORD_MAX_CHARS)


def _count(value: Any) -> int | None:
    """A count the wire can carry."""
    fine = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX
    return value if fine else None


def _time(value: Any) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        read = datetime.fromisoformat(value)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _kind(value: Any) -> str:
    """For people: what a value is, never the value itself."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "a yes or no"
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < 1e18 else "a number out of bounds"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
