"""What the mirror needs from outside, beside the disk. Each port has two adapters and one contract
suite that both pass (tests/contract/mirror)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_mirror.core.history import Entry
from llmgw_mirror.core.transfer import Head
from llmgw_mirror.core.versions import Moving, VersionView, WeightsState


class Interrupted(Unavailable):
    """Upstream cannot be reached now, or broke off: keep what is here and ask again."""

    code_default = "interrupted"


class Refused(LlmgwError):
    """Upstream will not give this file, however often it is asked."""

    code_default = "refused"


class Answer(Protocol):
    """One answer of an upstream: its head, then its body once."""

    @property
    def head(self) -> Head: ...

    def body(self) -> AsyncIterator[bytes]:
        """Pieces in order. Raises Interrupted when the transfer breaks off before its end."""
        ...


class Upstream(Protocol):
    """Where files come from; one adapter a scheme. `remote`: over a link that others need too, whose use may
    be capped."""

    @property
    def remote(self) -> bool: ...

    def open(self, url: str, *, offset: int, validator: str | None) -> AbstractAsyncContextManager[Answer]:
        """Ask for the bytes from `offset` if the content is still that of `validator`.

        Raises Interrupted or Refused; leaving the context ends the transfer, also in mid-body."""
        ...


@dataclass(frozen=True)
class Lease:
    """The right to write one content, until it expires. `token` grows with each holder of the key."""

    key: str
    token: int


@dataclass(frozen=True)
class LeaseView:
    """A lease in force and how far its holder is."""

    key: str
    holder: str
    moving: Moving


@dataclass(frozen=True)
class RecordedFile:
    path: str
    state: WeightsState
    sha256: str | None
    size_bytes: int | None
    error: str | None


@dataclass(frozen=True)
class RecordedVersion:
    model: str
    version: str
    files: tuple[RecordedFile, ...]


class Unstorable(InvalidRequest):
    """Postgres will never take this row, however often it is asked: it costs itself only."""

    code_default = "unstorable"


class Ledger(Protocol):
    """Who fetches what, and a copy of the states for others to query. The store itself is the truth.

    Every call may raise Unavailable; nothing is half done then, but a grant may have been made whose
    answer was lost: it is granted again to the same holder."""

    @property
    def holder(self) -> str:
        """This mirror process."""
        ...

    async def acquire(self, key: str, *, ttl_s: float) -> Lease | None:
        """None: another process holds it."""
        ...

    async def renew(self, lease: Lease, *, ttl_s: float, moving: Moving) -> bool:
        """False: lost, somebody else may write now."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give it up; a lease that was lost already is left alone."""
        ...

    async def live(self) -> Mapping[str, LeaseView]:
        """By key."""
        ...

    async def record(self, version: VersionView) -> None:
        """Write down what this version is now, in place of what was written before."""
        ...

    async def forget(self, model: str, version: str) -> None: ...

    async def recorded(self) -> Sequence[RecordedVersion]:
        """Everything written down for this store, by model and version."""
        ...


class History(Protocol):
    """Appended to, and forgotten from its old end. Nothing waits for it and nothing is decided by it: what
    cannot be written is logged."""

    async def note(self, entry: Entry) -> None:
        """Write it down; never raises for a database that is away."""
        ...

    async def newest(
        self, *, model: str | None, version: str | None, since: float | None, limit: int
    ) -> Sequence[Entry]:
        """Newest first. Raises Unavailable."""
        ...

    async def prune(self, *, before: float, most: int) -> int:
        """Forget lines from before then (seconds since 1970), among the `most` oldest ones; returns how many.
        Raises Unavailable."""
        ...
