"""What the Hub's clients read: bodies of repositories, trees, references and commits.

Names and shapes are those of the registry's API. What a mirror does not know (likes, dates of a commit,
scans) is left out, never made up; the clients take every such field as optional.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from llmgw_mirror.core.hub import MAIN, At, HeldFile, Offer, commits, find, references
from llmgw_mirror.core.hub_requests import Query

Row = dict[str, Any]

#: Of a listing without and with `expand`, as the registry cuts them.
TREE_PAGE, TREE_PAGE_EXPANDED = 1000, 50
SEARCH_PAGE, SEARCH_PAGE_MOST = 100, 1000
#: Fields that stand in every row, whatever `expand` names.
_ALWAYS = frozenset({"_id", "id", "modelId"})
#: What a search row shows without `full` or `expand`.
_PLAIN = frozenset({"_id", "id", "modelId", "private", "gated", "tags", "createdAt"})
#: Tags that follow from the names of files.
_FORMATS = {
    ".safetensors": "safetensors", ".gguf": "gguf", ".onnx": "onnx", ".bin": "pytorch", ".pt": "pytorch",
    ".pth": "pytorch",
}  # fmt: skip
#: Bytes of an LFS pointer without the digits of the size: three lines, fixed by its format.
_POINTER_BYTES = 125


def model_row(repository: str, at: At, *, blobs: bool = False) -> Row:
    """One repository at one commit. `siblings` names what is whole; while nothing is, nobody."""
    files = at.listed().values()
    row: Row = {
        "_id": _own_id(f"repository {repository}")[:24],
        "id": repository,
        "modelId": repository,
        "sha": at.commit,
        "private": False,
        "gated": False,
        "disabled": False,
        "tags": _tags(files),
        # When it came here: nothing else is known of its age.
        "createdAt": when(min(offer.created_at for offer in at.offers)),
        "siblings": [_sibling(file, blobs=blobs) for file in files],
        "usedStorage": sum(file.size_bytes for file in files),
    }
    if "/" in repository:
        row["author"] = repository.split("/")[0]
    return row


def expanded(row: Row, query: Query) -> Row:
    """Only what `expand` names, when it names anything."""
    named = query.every("expand")
    return {name: row[name] for name in row if name in _ALWAYS.union(named)} if named else row


def _sibling(file: HeldFile, *, blobs: bool) -> Row:
    row: Row = {"rfilename": file.path}
    if blobs:
        row |= {"size": file.size_bytes, "blobId": _blob_id(file)}
        if file.lfs:
            row["lfs"] = {"sha256": file.sha256} | _pointed(file)
    return row


def tree_rows(at: At, folder: str, *, recursive: bool, expand: bool) -> list[Row]:
    """Files and folders below `folder`, in order of their paths; none at all: no such folder."""
    beginning = f"{folder}/" if folder else ""
    rows: dict[str, Row] = {}
    for path, file in at.listed().items():
        if not path.startswith(beginning):
            continue
        parts = path.removeprefix(beginning).split("/")
        depths = range(1, len(parts) if recursive else min(2, len(parts)))
        for inner in (beginning + "/".join(parts[:depth]) for depth in depths):
            rows.setdefault(inner, _folder_row(at, inner, expand=expand))
        if recursive or len(parts) == 1:
            rows[path] = file_row(at, file, expand=expand)
    return [rows[path] for path in sorted(rows)]


def path_rows(at: At, paths: Iterable[str], *, expand: bool) -> list[Row]:
    """Those that are listed; the others are passed over."""
    files = at.listed()
    # Once for all: ten thousand paths may be asked about in one body.
    folders = {name[:end] for name in files for end, letter in enumerate(name) if letter == "/"}
    rows = []
    for path in dict.fromkeys(path.strip("/") for path in paths):
        if path in files:
            rows.append(file_row(at, files[path], expand=expand))
        elif path in folders:
            rows.append(_folder_row(at, path, expand=expand))
    return rows


def file_row(at: At, file: HeldFile, *, expand: bool) -> Row:
    """The sha256 is called `oid` here, and the row's own `oid` is a git id. No `xetHash`: a client that
    finds one leaves for the registry (H26)."""
    row: Row = {"type": "file", "oid": _blob_id(file), "size": file.size_bytes, "path": file.path}
    if file.lfs:
        row["lfs"] = {"oid": file.sha256} | _pointed(file)
    return row | _last_commit(at, expand=expand)


def _folder_row(at: At, path: str, *, expand: bool) -> Row:
    row: Row = {"type": "directory", "oid": _own_id(f"folder {at.commit} {path}"), "size": 0, "path": path}
    return row | _last_commit(at, expand=expand)


def _last_commit(at: At, *, expand: bool) -> Row:
    return (
        {"lastCommit": {"id": at.commit, "title": _title(at), "date": when(at.created_at)}} if expand else {}
    )


def reference_rows(offers: Sequence[Offer], *, pull_requests: bool) -> Row:
    """What a name is (branch or tag) was never told; all but the registry's own refs count as branches."""
    rows: dict[str, list[Row]] = {"branches": [], "tags": [], "converts": []}
    if pull_requests:
        rows["pullRequests"] = []
    for name, commit in references(offers).items():
        if name.startswith("refs/pr/"):
            kind, shown = "pullRequests", name.removeprefix("refs/pr/")
        elif name.startswith("refs/convert/"):
            kind, shown = "converts", name.removeprefix("refs/convert/")
        else:
            kind, shown = "branches", name
        ref = name if name.startswith("refs/") else f"refs/heads/{name}"
        if kind in rows:
            rows[kind].append({"name": shown, "ref": ref, "targetCommit": commit})
    return dict(rows)


def commit_rows(offers: Sequence[Offer], at: At) -> list[Row]:
    """The revision's commit and those that came here before it, newest first."""
    rows = [at, *(one for one in commits(offers) if one.created_at < at.created_at and one.whole)]
    return [
        {"id": one.commit, "title": _title(one), "message": "", "authors": [], "date": when(one.created_at)}
        for one in rows
    ]


def search_rows(repositories: Mapping[str, Sequence[Offer]], query: Query) -> list[Row]:
    """What matches and is whole: newest first where a time is asked for, else by id."""
    words = (query.one("search") or "").lower().split()
    author = query.one("author")
    wanted = {tag for field in query.every("filter") for tag in field.split(",")}
    named, full = set(query.every("expand")), query.flag("full")
    rows: list[tuple[float, Row]] = []
    for repository, offers in sorted(repositories.items()):
        at = find(offers, MAIN)
        if at is None or not at.whole or not all(word in repository.lower() for word in words):
            continue
        row = model_row(repository, at)
        if (author is not None and row.get("author") != author) or not wanted.issubset(row["tags"]):
            continue
        shown = _ALWAYS | named if named else (frozenset(row) if full else _PLAIN)
        rows.append((at.created_at, {name: value for name, value in row.items() if name in shown}))
    if query.one("sort") in ("createdAt", "lastModified", "created_at", "last_modified"):
        rows.sort(key=lambda dated: dated[0], reverse=True)
    return [row for _, row in rows]


def page(rows: Sequence[Row], cursor: str | None, size: int, *, key: str) -> tuple[list[Row], str | None]:
    """So many rows after the one that the cursor names, and the next cursor; None: these are the last.

    A cursor that names no row is a listing that changed meanwhile: the next row in order is meant."""
    start = 0
    if cursor is not None:
        names = [row[key] for row in rows]
        start = names.index(cursor) + 1 if cursor in names else sum(name <= cursor for name in names)
    shown = list(rows[start : start + size])
    return shown, shown[-1][key] if shown and start + size < len(rows) else None


def when(unix_s: float) -> str:
    """ISO 8601 in milliseconds, as the clients read it."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _tags(files: Iterable[HeldFile]) -> list[str]:
    endings = {file.path[file.path.rfind(".") :].lower() for file in files if "." in file.path}
    return sorted({_FORMATS[ending] for ending in endings if ending in _FORMATS})


def _title(at: At) -> str:
    return f"mirrored as {at.offers[-1].model} {at.offers[-1].version}"


def _blob_id(file: HeldFile) -> str:
    # Of an LFS pointer nobody told us the git id; clients want one and hold nothing against it.
    return file.git_id if file.git_id is not None else _own_id(f"pointer {file.sha256}")


def _pointed(file: HeldFile) -> Row:
    return {"size": file.size_bytes, "pointerSize": _POINTER_BYTES + len(str(file.size_bytes))}


def _own_id(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
