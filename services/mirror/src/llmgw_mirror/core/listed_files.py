"""Files of a repository as the registry lists them: each row by itself, with its traps.

The sha256 is called `sha256` in one kind of row and `oid` in the other, beside git ids of pointer files;
sizes may be those of pointers; names may be hostile (H17). What cannot be used is absent, with a reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmgw_kit.errors import InvalidRequest
from llmgw_kit.text import shortened, visible
from llmgw_mirror.core.bounds import FILE_MAX_BYTES
from llmgw_mirror.core.names import check_path, folded
from llmgw_mirror.core.odd_values import WORD_MAX_CHARS, kind
from llmgw_mirror.core.registry_names import COMMIT
from llmgw_mirror.core.versions import FILES_MAX, SHA256
from llmgw_mirror.core.weight_files import is_weight

#: A pointer that git keeps in place of an LFS file: three lines of fixed words, a hash and a number of
#: digits. Its length shows up as a file's size where git's plumbing leaks.
POINTER_BYTES = range(124, 141)


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
            odd.append(OddFile(f"row {number}", f"the registry sent {kind(row)} without a path"))
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= FILE_MAX_BYTES:
        return None, f"its size is {kind(value)}"
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
