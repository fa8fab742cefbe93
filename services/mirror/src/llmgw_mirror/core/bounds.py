"""How much of anything is taken from outside: sizes, lengths and times that wires and stores can carry."""

from collections.abc import Iterable

from llmgw_kit.errors import InvalidRequest
from llmgw_kit.text import is_storable

#: Of one file, and of all files of a version: hundreds of times the largest known, and sums over thousands of
#: versions still fit the wire.
FILE_MAX_BYTES, VERSION_MAX_BYTES = 2**50, 2**53
#: Paths and URLs of a version together, in characters: they are kept, listed and sent as one.
WORDS_MAX_CHARS = 16 * 2**20
#: As much as common servers take; signed URLs of CDNs have about two thousand.
URL_MAX_CHARS = 8192
#: Of one request: ten thousand files with URLs of a usual length take a tenth of it.
REQUEST_MAX_BYTES = 16 * 2**20
#: Of who asks, as they say.
ASKED_BY_MAX_CHARS = 200
#: Seconds since 1970: the year 9999 ends. What is later is no time to calendars and stores.
TIME_MAX_S = 253_402_300_799


def check_size(path: str, size_bytes: int | None) -> None:
    """Raises InvalidRequest."""
    if size_bytes is not None and not 0 <= size_bytes <= FILE_MAX_BYTES:
        raise InvalidRequest(
            f"the size of {path!r} is {size_bytes}; expected 0 to {FILE_MAX_BYTES} bytes",
            next_steps=["give the size in bytes, or none"],
        )


def check_sums(version: str, sizes: Iterable[int], words: Iterable[str]) -> None:
    """Of a whole version: its files' sizes, and all its paths and URLs. Raises InvalidRequest."""
    if (size := sum(sizes)) > VERSION_MAX_BYTES:
        raise InvalidRequest(
            f"the files of {version!r} have {size} bytes together; at most {VERSION_MAX_BYTES} are taken",
            next_steps=["give the sizes in bytes, or none"],
        )
    if (characters := sum(map(len, words))) > WORDS_MAX_CHARS:
        raise InvalidRequest(
            f"the paths and URLs of {version!r} have {characters} characters together; "
            f"at most {WORDS_MAX_CHARS} are taken",
            next_steps=["give shorter URLs, or make several versions of it"],
        )


def check_url_text(url: str, *, what: str) -> None:
    """Raises InvalidRequest."""
    if len(url) > URL_MAX_CHARS:
        raise InvalidRequest(
            f"{what} has {len(url)} characters; at most {URL_MAX_CHARS} are taken",
            next_steps=["name a shorter URL that the file is at"],
        )
    if not is_storable(url):
        raise InvalidRequest(
            f"{what} holds half a character, or a NUL", next_steps=["quote the bytes of UTF-8, one %XX each"]
        )


def check_asked_by(name: str) -> None:
    """Whom a history shows: one line that is stored as it is. Raises InvalidRequest."""
    if len(name) > ASKED_BY_MAX_CHARS or not name.isprintable():
        raise InvalidRequest(
            f"asked_by has {len(name)} characters; expected at most {ASKED_BY_MAX_CHARS}, all printable",
            next_steps=["name a person or a program in a few words, or nobody"],
        )


def is_time(value: object) -> bool:
    """Seconds since 1970 that every calendar knows."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= TIME_MAX_S
