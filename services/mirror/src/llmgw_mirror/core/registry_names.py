"""What the registry is asked with: repository ids, revisions, and the URLs made of them.

Nothing of a caller's or the registry's reaches a URL but quoted, part by part.
"""

import re
from urllib.parse import quote, urlencode, urlsplit

from llmgw_kit.errors import InvalidRequest

#: As the Hub names repositories: one or two parts of these characters.
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_ID = re.compile(rf"{_PART}(?:/{_PART})?")
#: Of a branch or tag; git itself stops at what a file system takes.
REVISION_MAX_CHARS = 200
_REVISION = re.compile(r"[^\s\\~^:?*\[\x00-\x20\x7f]+")

COMMIT = re.compile(r"[0-9a-f]{40}")


def check_repository(repository: str) -> str:
    """An id as it came. Raises InvalidRequest."""
    if _ID.fullmatch(repository) and ".." not in repository and not repository.endswith((".git", "/")):
        return repository
    raise InvalidRequest(
        f"{repository[:120]!r} is no repository's id",
        code="bad_repository",
        next_steps=['an id is "org/name", or "name" of old ones: letters, digits, "-", "_" and "."'],
    )


def check_revision(revision: str) -> str:
    """A branch, tag or commit, by git's own rules for names (git-check-ref-format). Raises InvalidRequest."""
    fine = (
        0 < len(revision) <= REVISION_MAX_CHARS
        and _REVISION.fullmatch(revision)
        and revision.isprintable()
        and not revision.startswith(("/", "-", "."))
        and not revision.endswith(("/", ".", ".lock"))
        and not any(bad in revision for bad in ("..", "//", "@{", "/."))
    )
    if not fine:
        raise InvalidRequest(
            f"{revision[:120]!r} is no revision",
            code="bad_revision",
            next_steps=["name a branch, a tag or a commit of 40 hexadecimal digits"],
        )
    return revision


def is_commit(revision: str) -> bool:
    return COMMIT.fullmatch(revision.lower()) is not None


def info_url(base: str, repository: str, revision: str) -> str:
    """All files at a revision, with sizes and checksums; the revision is one segment."""
    return f"{base}/api/models/{_path(repository)}/revision/{quote(revision, safe='')}?blobs=true"


def tree_url(base: str, repository: str, commit: str) -> str:
    return f"{base}/api/models/{_path(repository)}/tree/{commit}?recursive=true&expand=false"


def file_url(base: str, repository: str, commit: str, path: str) -> str:
    """Where a file's bytes are, for good: the commit is part of it."""
    return f"{base}/{_path(repository)}/resolve/{commit}/{_path(path)}"


def search_url(base: str, parameters: list[tuple[str, str]]) -> str:
    return f"{base}/api/models?{urlencode(parameters, quote_via=quote)}"


def _path(path: str) -> str:
    return "/".join(quote(part, safe="") for part in path.split("/"))


def check_base(url: str) -> str:
    """A registry's base URL without the slash at its end. Raises ValueError with what was expected."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no base URL; expected https://HOST[:PORT][/PREFIX]")
    return url.rstrip("/")
