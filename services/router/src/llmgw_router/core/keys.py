"""API keys as the data plane knows them: digests, what each may use, and until when.

A key is `sk-llmgw-` and 256 random bits. So much chance needs no slow hash: nobody guesses it, and a digest
that is stolen opens nothing. SHA-256 costs 0.9 µs, bcrypt would cost a core (design: router-wire 4.7).
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator

import msgspec

#: What our own keys begin with; a key of a file may be any text of these bounds.
PREFIX = "sk-llmgw-"
RANDOM_BYTES = 32
#: Shown in lists in place of the key: the prefix and six of its 43 characters.
SHOWN_CHARACTERS = len(PREFIX) + 6
#: A shorter one could be guessed.
SHORTEST_KEY = 20

DIGEST_BYTES = 32
#: Rows that one message carries: taking so many in stops a worker for about a millisecond.
SLICE = 1000


class KeyRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One API key as workers know it: never the key, only its digest."""

    #: SHA-256 of the key as it stands behind `Bearer `.
    digest: bytes
    key_id: str
    #: Path in the tree of tenants, "/" between levels; None: belongs to nobody in particular.
    tenant: str | None = None
    #: Names of models it may use; None: all.
    models: tuple[str, ...] | None = None
    #: Routing profiles it may ask for; the first is its own default. None: every profile, the usual default.
    profiles: tuple[str, ...] | None = None
    #: May see `x-llmgw-decision`.
    explain: bool = False
    expires_unix_s: float | None = None

    def __repr__(self) -> str:
        return f"<key {self.key_id}>"


def key_of(random: bytes) -> str:
    """A key of RANDOM_BYTES from the operating system. Its alphabet survives headers, shells and URLs."""
    assert len(random) == RANDOM_BYTES
    return PREFIX + base64.urlsafe_b64encode(random).rstrip(b"=").decode()


def digest_of(key: bytes) -> bytes:
    """What stands for a key wherever it is kept."""
    return hashlib.sha256(key).digest()


def may_use(row: KeyRow, asked: str, model: str) -> bool:
    """Whether a request for `asked`, a name or an alias of `model`, is within the key's scope."""
    return row.models is None or model in row.models or asked in row.models


def has_expired(row: KeyRow, now_unix_s: float) -> bool:
    return row.expires_unix_s is not None and now_unix_s >= row.expires_unix_s


def sliced(rows: Iterable[KeyRow]) -> Iterator[tuple[KeyRow, ...]]:
    """`rows` in parts of SLICE; one empty part for none."""
    part: list[KeyRow] = []
    empty = True
    for row in rows:
        part.append(row)
        if len(part) == SLICE:
            yield tuple(part)
            part, empty = [], False
    if part or empty:
        yield tuple(part)
