"""Names that become paths on this node. Whatever came over the network is hostile until it passes here."""

from pathlib import PurePosixPath
from urllib.parse import quote

from llmgw_kit.errors import InvalidRequest

#: Longest file name of common file systems, less what we append.
MOST_NAME_BYTES = 240


def folder_name(name: str, *, what: str) -> str:
    """A model or version name as one path component: everything but letters, digits and _.-~ is escaped.

    Raises InvalidRequest for a name that cannot be one."""
    quoted = quote(name, safe="", errors="replace")
    if not name or name.startswith(".") or not _is_text(name) or len(quoted) > MOST_NAME_BYTES:
        raise InvalidRequest(
            f"{what} {name[:100]!r} cannot be a folder name",
            next_steps=[f"it must not be empty, start with a dot, or be longer than {MOST_NAME_BYTES} bytes"],
        )
    return quoted


def file_path(path: str, *, what: str) -> PurePosixPath:
    """A relative path inside a version, as a mirror lists it.

    Raises InvalidRequest for one that is absolute, climbs, or hides."""
    parts = path.split("/")
    bad = (
        not path
        or not _is_text(path)
        or "\\" in path
        or any(ord(c) < 32 or ord(c) == 127 for c in path)
        or any(part in ("", ".", "..") or len(part.encode()) > MOST_NAME_BYTES for part in parts)
        or len(path.encode()) > 2000
    )
    if bad:
        raise InvalidRequest(f"{what} {path[:100]!r} is not a path inside a version")
    return PurePosixPath(*parts)


def _is_text(name: str) -> bool:
    """JSON can carry halves of characters (lone surrogates), which no file system takes."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
