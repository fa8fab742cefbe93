"""What a Hub client asks for: the raw path and the query, taken apart.

The path is split before it is unquoted: a revision comes as one segment with its slashes quoted
(`refs%2Fpr%2F1`), a path keeps its slashes in `resolve` and is one quoted segment in `tree`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.names import check_path

#: One or two parts, as the registry allows them; nothing else can be a repository's id.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
REPOSITORY_ID = re.compile(rf"{_PART}(?:/{_PART})?")
#: Stand where an organisation would, and name other kinds of repositories. A mirror has models only.
OTHER_KINDS = frozenset({"datasets", "spaces", "buckets", "kernels"})
#: Follow a repository's id in the API; so no repository is called that.
_CALLS = frozenset({"revision", "tree", "paths-info", "refs", "commits"})
#: These revisions hold slashes that people leave unquoted.
_UNQUOTED_REFS = frozenset({"pr", "convert", "heads", "tags"})
#: More is no query of any client.
FIELDS_MAX = 10_000


@dataclass(frozen=True)
class WhoAmI:
    """Whose token this is."""


@dataclass(frozen=True)
class Search:
    """Repositories by words."""


@dataclass(frozen=True)
class Info:
    """One repository. `revision`: None when none was named, which means main."""

    repository: str
    revision: str | None


@dataclass(frozen=True)
class Tree:
    """What a folder holds; "" is the repository's root."""

    repository: str
    revision: str
    folder: str


@dataclass(frozen=True)
class PathsInfo:
    """The same for paths that the body names."""

    repository: str
    revision: str


@dataclass(frozen=True)
class Refs:
    """Branches and tags."""

    repository: str


@dataclass(frozen=True)
class Commits:
    """What led to a revision."""

    repository: str
    revision: str


@dataclass(frozen=True)
class Resolve:
    """A file's metadata (HEAD) or bytes (GET)."""

    repository: str
    revision: str
    path: str


@dataclass(frozen=True)
class OtherKind:
    """A dataset, a space: nothing that a mirror has."""

    what: str


@dataclass(frozen=True)
class Unknown:
    """Nothing of the protocol that a mirror offers."""


HubRequest = WhoAmI | Search | Info | Tree | PathsInfo | Refs | Commits | Resolve | OtherKind | Unknown


def hub_request(raw_path: str) -> HubRequest:
    """`raw_path` as it came, without prefix and query. Raises InvalidRequest for what is not UTF-8 once
    unquoted, and for hostile paths of files."""
    segments = raw_path.removeprefix("/").split("/")
    if segments[0] == "api":
        return _api([_unquoted(segment) for segment in segments[1:]])
    for at in (1, 2):
        # The quoted id of some JavaScript clients is one segment.
        if len(segments) > at + 2 and segments[at] == "resolve":
            return _resolve("/".join(_unquoted(segment) for segment in segments[:at]), segments[at + 1 :])
    if len(segments) > 4 and segments[0] in OTHER_KINDS and segments[3] == "resolve":
        return OtherKind(segments[0])
    return Unknown()


def _resolve(repository: str, rest: Sequence[str]) -> HubRequest:
    if repository.split("/")[0] in OTHER_KINDS:
        return OtherKind(repository.split("/")[0])
    count = 3 if rest[0] == "refs" and len(rest) > 3 and rest[1] in _UNQUOTED_REFS else 1
    revision = "/".join(_unquoted(segment) for segment in rest[:count])
    path = "/".join(_unquoted(segment) for segment in rest[count:])
    return Resolve(repository, revision, check_path(path))


def _api(names: Sequence[str]) -> HubRequest:
    if names == ["whoami-v2"]:
        return WhoAmI()
    if names[0] in OTHER_KINDS:
        return OtherKind(names[0])
    if names[0] != "models":
        return Unknown()
    names = names[1:]
    if names in ([], [""]):
        return Search()
    at = 1 if "/" in names[0] or len(names) == 1 or names[1] in _CALLS else 2
    repository, rest = "/".join(names[:at]), names[at:]
    match rest:
        case []:
            return Info(repository, None)
        case ["revision", revision]:
            return Info(repository, revision)
        case ["tree", revision]:
            return Tree(repository, revision, "")
        case ["tree", revision, *folder]:
            path = "/".join(folder).strip("/")
            return Tree(repository, revision, check_path(path) if path else "")
        case ["paths-info", revision]:
            return PathsInfo(repository, revision)
        case ["refs"]:
            return Refs(repository)
        case ["commits", revision]:
            return Commits(repository, revision)
        case _:
            return Unknown()


def _unquoted(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest(
            "a part of the address is not UTF-8 once unquoted",
            next_steps=["quote the bytes of UTF-8, one %XX each"],
        ) from None


class Query:
    """Fields of a query or of a form. `name[]` counts as `name`."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        #: As they came.
        self.fields = tuple(fields)

    @classmethod
    def of(cls, text: str) -> "Query":
        """Raises InvalidRequest."""
        try:
            return cls(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
        except ValueError as e:
            raise InvalidRequest(f"the query cannot be read: {e}", next_steps=["quote its values"]) from None

    def every(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field in (name, f"{name}[]")]

    def one(self, name: str) -> str | None:
        """The last one given; None without any."""
        given = self.every(name)
        return given[-1] if given else None

    def flag(self, name: str) -> bool:
        """Clients write True, true and 1."""
        return (self.one(name) or "").lower() in ("true", "1")

    def limit(self, name: str, *, usual: int, most: int) -> int:
        """A page's size, which is a hint: what cannot be read is the usual one."""
        given = self.one(name) or ""
        return min(most, int(given)) if given.isascii() and given.isdigit() and int(given[:9]) > 0 else usual


_HUB_AGENT = re.compile(r"\bhf_hub/(\d{1,4})")


def client_generation(user_agent: str | None) -> int | None:
    """The major version of the Hub's client; None for other programs."""
    match = _HUB_AGENT.search(user_agent or "")
    return int(match[1]) if match else None
