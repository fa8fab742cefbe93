"""Names that come from outside: which are safe on every operating system, and which are refused.

Nothing is stored under a remote name (see adapters/store.py), but the nodes lay the files out under
these paths, so a name that is hostile to any of them is refused before a byte is fetched.
"""

import unicodedata
from collections.abc import Iterable

from llmgw_kit.errors import InvalidRequest

#: What every operating system takes.
PLAIN = "keep to letters, digits, dots, dashes and underscores, with single slashes between parts"

#: Longest model or version name, in characters; a Hub repository id has at most 96 + 1 + 96.
NAME_MAX_CHARS = 200
#: Longest path inside a version and longest part of it, in UTF-8 bytes (ext4, xfs: 255 a part).
PATH_MAX_BYTES = 1024
PART_MAX_BYTES = 255

#: Of Windows, with or without an extension: opening one reaches a device, not a file.
DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789¹²³"}
)
#: Meaning something to a shell or a file system somewhere; ":" opens a drive or an alternate stream.
FORBIDDEN = frozenset('\\:*?"<>|')


def check_name(what: str, name: str) -> str:
    """A model's or version's name: parts divided by "/", as in `org/model`. Raises InvalidRequest."""
    if not name:
        raise InvalidRequest(f"{what} is empty", next_steps=["give its name, such as org/model"])
    if len(name) > NAME_MAX_CHARS:
        raise InvalidRequest(
            f"{what} has {len(name)} characters; at most {NAME_MAX_CHARS} are taken",
            next_steps=["give a shorter name"],
        )
    if (why := _fault(name)) is not None:
        raise InvalidRequest(f"{what} {name!r} is refused: {why}", next_steps=[PLAIN])
    return name


def check_path(path: str) -> str:
    """A file's path inside its version: relative, forward slashes. Raises InvalidRequest."""
    if not path:
        raise InvalidRequest(
            "a file has an empty path",
            next_steps=["name the file by its path inside the version, such as model.safetensors"],
        )
    if _utf8_length(path) > PATH_MAX_BYTES:
        raise InvalidRequest(
            f"path {path[:80]!r}… has {_utf8_length(path)} bytes; at most {PATH_MAX_BYTES} are taken",
            next_steps=["give a shorter path"],
        )
    if (why := _fault(path)) is not None:
        raise InvalidRequest(f"path {path!r} is refused: {why}", next_steps=[f"in a file's path {PLAIN}"])
    return path


def check_together(paths: Iterable[str]) -> None:
    """Paths of one version that could not lie in one folder everywhere. Raises InvalidRequest."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        fold = folded(path)
        if fold in seen:
            raise InvalidRequest(
                f"path {path!r} is given twice"
                if seen[fold] == path
                else f"paths {seen[fold]!r} and {path!r} are one file where case or accents do not count",
                next_steps=["name each file once, under a path of its own"],
            )
        seen[fold] = path
        parts = fold.split("/")
        for depth in range(1, len(parts)):
            folders.setdefault("/".join(parts[:depth]), path)
    for fold, path in seen.items():
        if fold in folders:
            raise InvalidRequest(
                f"path {path!r} is a file, and {folders[fold]!r} needs it as a folder",
                next_steps=["give one of the two another path"],
            )


def folded(path: str) -> str:
    """Equal for paths that are one file where case or accents do not count."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _fault(name: str) -> str | None:
    for character in name:
        # Control, format (they reorder or hide what is read), surrogate, private, unassigned.
        if unicodedata.category(character)[0] == "C":
            return f"it holds the invisible character U+{ord(character):04X}"
        if unicodedata.category(character)[0] == "Z" and character != " ":
            return f"it holds U+{ord(character):04X}, which looks like a blank and is none"
        if character in FORBIDDEN:
            return f"it holds {character!r}"
    if name.startswith("/"):
        return "it is absolute"
    for part in name.split("/"):
        if part == "":
            return "it has an empty part between slashes"
        if part in (".", ".."):
            return f"it has the part {part!r}"
        if part != part.strip() or part.endswith("."):
            return f"its part {part!r} begins or ends with a blank, or ends with a dot"
        if part.split(".")[0].rstrip().casefold() in DEVICES:
            return f"its part {part!r} is a device's name on some systems"
        if _utf8_length(part) > PART_MAX_BYTES:
            return f"its part {part[:40]!r}… has more than {PART_MAX_BYTES} bytes"
    return None
