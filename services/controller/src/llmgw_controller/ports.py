"""What the controller needs from outside. Each port has a real adapter and an in-memory one, and one
contract suite that both pass."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from llmgw_controller.core.activity import Activity
from llmgw_controller.core.benchmarks import BenchmarkRun
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.keys import ApiKey, UsageSum
from llmgw_controller.core.plan import Change, PutEvent, Severity
from llmgw_controller.core.rows import EvictionRow, Stored
from llmgw_controller.core.state import ControllerSeen
from llmgw_kit.errors import Conflict
from llmgw_kit.ids import LeaseTerm, ModelId, ReplicaId


class Fenced(Conflict):
    """The lease ran out or another holds it: stop acting; nothing was written."""

    code_default = "fenced"


class ClaimTaken(Conflict):
    """A device or port of the plan was claimed meanwhile: nothing was written; decide again."""

    code_default = "claim_taken"


@dataclass(frozen=True)
class Lease:
    """Held by us. `db_now` is the database's clock (unix seconds) when the answer was made."""

    holder: str
    term: LeaseTerm
    ttl_s: float
    db_now: float


@dataclass(frozen=True)
class LeaseView:
    """Who leads as the store has it, for standbys. `expires_in_s` may be negative: expired."""

    holder: str
    address: str
    term: LeaseTerm
    expires_in_s: float


class LeaseStore(Protocol):
    """One row; the store's clock decides expiry. Uses a connection of its own."""

    async def acquire(self, *, holder: str, address: str, ttl_s: float, above: int = 0) -> Lease | None:
        """Take a lease that is free or expired, under a term higher than the last and than `above`. None:
        somebody holds it; also when that is an earlier life of the same holder, whose last write may still
        be under way."""
        ...

    async def renew(self, lease: Lease) -> Lease | None:
        """Extend while still ours and unexpired; None: lost."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give it up at once, so that a standby need not wait for the ttl."""
        ...

    async def read(self) -> LeaseView | None: ...


class Roster(Protocol):
    """Who could lead. Each controller writes its own row, leader or not; nothing is decided by it."""

    async def announce(self, me: ControllerSeen) -> tuple[ControllerSeen, ...]:
        """Say that we are here; who else said so lately, ourselves included, by address. Raises
        Unavailable."""
        ...

    async def leave(self, me: ControllerSeen) -> None:
        """We stop on purpose. Raises Unavailable."""
        ...


@dataclass(frozen=True)
class EventRow:
    event_id: int
    at: float
    term: LeaseTerm
    kind: str
    subject: str
    text: str
    severity: Severity


#: What follows a subject's name in the names of its parts: a model's replica `m/1`, a node's device `n1:0`.
PART = "[/:][0-9.]+"


def is_about(subject: str, asked: str) -> bool:
    """Whether an event of `subject` is told to who asks for `asked`: the same, or a part of it."""
    return subject == asked or (
        subject.startswith(asked) and re.fullmatch(PART, subject[len(asked) :], re.ASCII) is not None
    )


#: Of each model, profile and GPU class; older runs are forgotten as new ones come.
BENCHMARKS_KEPT = 20


@dataclass(frozen=True)
class StatusRecord:
    """A status as it was: a serialised GetStatusResponse."""

    at: float
    term: LeaseTerm
    status: bytes


class History(Protocol):
    """Recorded statuses, for looking back. Bounded in bytes: the oldest give way."""

    async def record(self, term: LeaseTerm, at: float, status: bytes) -> None:
        """Add the newest one. Raises Fenced and Unavailable."""
        ...

    async def newest(self, at: float) -> StatusRecord | None:
        """The newest that is not younger than `at`; None: none is so old. Raises Unavailable."""
        ...

    async def span(self) -> tuple[float, float] | None:
        """Times of the oldest and the newest; None: there is none. Raises Unavailable."""
        ...

    async def thin(self, term: LeaseTerm, *, before: float, minutes_before: float) -> int:
        """Forget those from before `before`, and of those from before `minutes_before` all but the last of
        each minute; how many. Raises Fenced and Unavailable."""
        ...


class ApiKeys(Protocol):
    """Keys, which routers read from where they are kept, and what routers say that they have used."""

    async def put(self, term: LeaseTerm, key: ApiKey, event: PutEvent) -> None:
        """Keep a new one, with its event. Raises Fenced and Unavailable."""
        ...

    async def revoke(self, term: LeaseTerm, key_id: str, at: float, event: PutEvent) -> None:
        """For good, with its event. Raises Fenced and Unavailable."""
        ...

    async def newest(self, limit: int, *, also_gone: bool) -> list[ApiKey]:
        """Newest first; `also_gone`: revoked and expired ones too. Raises Unavailable."""
        ...

    async def find(self, text: str, limit: int) -> list[ApiKey]:
        """Those whose id is this or begins with it, or whose prefix it is. Raises Unavailable."""
        ...

    async def usage(self, by: str, since: float, limit: int) -> list[UsageSum]:
        """Sums by "key", "model", "tenant" or "router", the most first. Raises Unavailable."""
        ...


class Store(Protocol):
    """The truth. Every write carries the term and fails as a whole."""

    @property
    def keys(self) -> ApiKeys | None:
        """None: routers could not read them."""
        ...

    @property
    def history(self) -> History: ...

    @property
    def kind(self) -> Literal["postgres", "memory"]: ...

    async def clock(self) -> float | None:
        """The store's own clock, unix seconds; None: it has none but ours. Raises Unavailable."""
        ...

    async def load(self) -> Stored:
        """Everything, as of one moment. Raises Unavailable when the store does not answer."""
        ...

    async def commit(self, term: LeaseTerm, changes: Sequence[Change]) -> None:
        """All or nothing. Raises Fenced, ClaimTaken, or Unavailable; after the last the outcome is
        unknown, and the caller loads again."""
        ...

    async def events(
        self, *, since: float | None, until: float | None = None, subject: str | None, limit: int
    ) -> list[EventRow]:
        """Newest first; both bounds are part of it. A subject has its parts with it: a model its replicas, a
        node its devices. Raises Unavailable."""
        ...

    async def first_event(self, since: float) -> int | None:
        """The number of the oldest event of `since` or later; None: there is none. Raises Unavailable."""
        ...

    async def evictions(self, *, since: float | None, model: ModelId | None, limit: int) -> list[EvictionRow]:
        """Receipts, newest first; `model`: of the one that left or the one that needed the room."""
        ...

    async def events_after(self, event_id: int, *, subject: str | None, limit: int) -> list[EventRow]:
        """Those that came after it, oldest first. Raises Unavailable."""
        ...

    async def prune_events(self, term: LeaseTerm, *, before: float) -> int:
        """Forget older events; how many. Raises Fenced and Unavailable."""
        ...

    async def put_benchmark(self, term: LeaseTerm, run: BenchmarkRun) -> int:
        """Keep a run, and forget the oldest of its kind beyond BENCHMARKS_KEPT; its number. Raises Fenced and
        Unavailable."""
        ...

    async def benchmarks(self, model: str | None) -> list[BenchmarkRun]:
        """Newest first; of one model or of all. Raises Unavailable."""
        ...


class ActivityReader(Protocol):
    """Redis. Never raises: what cannot be read is told inside."""

    async def read(self) -> Activity: ...

    async def forget(self, replica_ids: Collection[ReplicaId]) -> None:
        """Remove the times of replicas that are gone; tried again after the next reading if it fails."""
        ...


class MirrorClient(Protocol):
    """The mirror's gRPC."""

    async def fetch(self, model: Model) -> None:
        """Idempotent. Raises Unavailable or InvalidRequest; logged and repeated on the next pass."""
        ...
