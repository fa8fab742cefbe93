"""Who asks: the key of a request, looked up before anything else is done for it (W03, W37, HO30).

A client sends the same header bytes with each request, so those are remembered with the row they stand for;
a digest is computed once a key and update. What is unknown is not remembered: hostile clients have many.
"""

import time
from typing import TYPE_CHECKING, Final

from llmgw_router.core import errors
from llmgw_router.core.errors import Kind
from llmgw_router.core.keys import KeyRow, digest_of, has_expired
from llmgw_router.relay import ipc

if TYPE_CHECKING:
    from llmgw_router.relay.request import Request

#: Header lines remembered; all are forgotten when there are more, and with each update.
_REMEMBERED = 8192

#: One text for no key, a wrong scheme, an unknown, revoked or expired one: which of them it is, and whether a
#: key ever existed, is nobody's business; and what was sent is never repeated.
NO_KEY: Final = (
    errors.INVALID_KEY,
    "A valid API key is required; send it as `Authorization: Bearer KEY`, `x-api-key` or `api-key`.",
)
_LOADING: Final = (errors.STARTING, "This router has not loaded its API keys yet; ask again.")

#: Below this a key decides; what lies beside it, as the health pages do, is open or has a door of its own.
_GUARDED = b"/v1"

Refusal = tuple[Kind, str]


class Access:
    """One per worker. `required` False: nobody is asked for a key."""

    def __init__(self, *, required: bool) -> None:
        self.required = required
        #: None: not loaded yet.
        self._rows: dict[bytes, KeyRow] | None = None
        #: Slices of a whole set that is not complete yet: until then the old one counts.
        self._coming: dict[bytes, KeyRow] | None = None
        #: Why no key can be told good or bad any more.
        self._stale: str | None = None
        self._lines: dict[bytes, KeyRow] = {}

    def update(self, update: ipc.KeysUpdate) -> None:
        """Take over what the supervisor says; in force from the next request on."""
        if update.stale is not None:
            self._stale = update.stale
            return
        if update.whole:
            coming = self._coming = self._coming if self._coming is not None else {}
            for row in update.keys:
                coming[row.digest] = row
            if update.more:
                return
            self._rows, self._coming = coming, None
        else:
            rows = self._rows = self._rows if self._rows is not None else {}
            for row in update.keys:
                rows[row.digest] = row
            for digest in update.gone:
                rows.pop(digest, None)
        self.required = update.required
        self._stale = None
        self._lines.clear()

    def check(self, request: "Request") -> Refusal | KeyRow | None:
        """The key of a request, None where none is asked for, or the refusal."""
        if not self.required:
            return None
        private = request.private
        if private:
            row = self._lines.get(private[0])
            if row is None or (row.expires_unix_s is not None and has_expired(row, time.time())):
                row = self._find(private)
            if row is not None and self._stale is None:
                return row
        if self._stale is not None:
            # A 401 would be believed, and a key thrown away that may be good.
            return errors.KEYS_AWAY, self._stale
        if self._rows is None:
            return _LOADING
        return NO_KEY

    def _find(self, private: list[bytes]) -> KeyRow | None:
        """The first good one counts, where several are sent: whoever sent it has it."""
        rows = self._rows
        if not rows:
            return None
        for line in private:
            row = self._lines.get(line)
            if row is None:
                key = _key_in(line)
                row = None if key is None else rows.get(digest_of(key))
                if row is None:
                    continue
                if len(self._lines) >= _REMEMBERED:
                    self._lines.clear()
                self._lines[line] = row
            if not has_expired(row, time.time()):
                return row
        return None


def is_guarded(path: bytes) -> bool:
    """Whether a cold path asks for a key: everything of the API, known or not, so that nothing of it is a way
    around (HO30)."""
    return path.startswith(_GUARDED)


def _key_in(line: bytes) -> bytes | None:
    name, _, value = line.partition(b":")
    name = name.lower()
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else None
    return value.strip() if name in (b"x-api-key", b"api-key") else None
