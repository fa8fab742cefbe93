"""What the router's supervisor needs from outside, as its loops see it."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llmgw_kit.addresses import HostPort
from llmgw_router.core.activity import Report
from llmgw_router.core.keys import KeyRow
from llmgw_router.core.learned import Delta, Routes, Snapshot
from llmgw_router.core.usage_lines import UsageRecord
from llmgw_router.relay.ipc import ActivationRefused, EndpointRow, StartPhase, TableUpdate
from llmgw_router.relay.slots import EndpointActivity


class Workers(Protocol):
    """The relay workers, as far as loops drive them."""

    def push_table(self, update: TableUpdate) -> None: ...

    def refuse(self, refusal: ActivationRefused) -> None: ...

    def tell_phase(self, phase: StartPhase) -> None: ...

    def activity(self) -> list[tuple[EndpointRow, EndpointActivity]]: ...

    @property
    def held(self) -> dict[str, int]: ...


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who this router is: the id outlives a restart, the incarnation does not."""

    router_id: str
    incarnation: str
    version: str


@dataclass(frozen=True)
class MoveOn:
    """The controller is stopping: ask this one instead, or any when it names none."""

    leader: HostPort | None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """How far a start is."""

    phase: str
    progress: float | None
    eta_s: float | None


@dataclass(frozen=True)
class Ready:
    """A hint that the model is up; the table decides."""

    routes_version: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The model is not going to start now."""

    code: str
    text: str
    retry_after_s: float | None


@dataclass(frozen=True, kw_only=True)
class Acknowledgement:
    """What all workers have applied, and the drains seen through."""

    term: int
    version: int
    drained: frozenset[str]


class Session(Protocol):
    """One connection to one controller. Every call raises LlmgwError; NotLeader names the leader."""

    @property
    def address(self) -> HostPort: ...

    def watch(self, *, highest_term: int | None) -> AsyncGenerator[Snapshot | Delta | MoveOn, None]: ...

    async def acknowledge(self, states: AsyncIterator[Acknowledgement]) -> None: ...

    def activate(self, model: str, *, waiting: int) -> AsyncGenerator[Phase | Ready | Refused, None]: ...

    async def ping(self) -> None:
        """One short question, answered by any controller that lives."""
        ...

    async def goodbye(self, *, activity_lost: bool) -> None: ...

    async def close(self) -> None: ...


class Controllers(Protocol):
    def open(self, address: HostPort) -> Session:
        """Does not wait: the first call shows whether anybody is there."""
        ...


@dataclass(frozen=True, kw_only=True)
class ActivityReply:
    """What the store said to a report."""

    epoch: str
    run_id: str
    #: Redis's own clock.
    at_unix_ms: int


class ActivityStore(Protocol):
    """Redis, in one call a tick. Raises Unavailable."""

    async def send(
        self, report: Report, *, held: dict[str, int], seq: int, epoch: str | None
    ) -> ActivityReply:
        """`epoch` is the one for which the whole map was sent before; None: none."""
        ...

    async def goodbye(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class KeysChange:
    """Keys as of one version: all of them, or what differs from the version that was asked about."""

    version: int
    whole: bool
    keys: Sequence[KeyRow]
    #: Digests of those that are good no more.
    gone: Sequence[bytes]


class KeysStore(Protocol):
    """Where keys live."""

    async def changed(self, since: int | None) -> KeysChange | None:
        """What came after version `since`; None: nothing. Raises Unavailable."""
        ...

    async def hinted(self, within_s: float) -> None:
        """Return when something seems to have changed, or after so long."""
        ...

    async def close(self) -> None: ...


class KeysSink(Protocol):
    """The relay workers, as far as keys go to them."""

    @property
    def keys_held(self) -> int: ...

    def push_keys(self, rows: Iterable[KeyRow], gone: Iterable[bytes] = (), *, whole: bool) -> None: ...

    def keys_are_stale(self, why: str) -> None: ...


@dataclass
class UsageBatch:
    """What a pass over the spools has found. Given back to `taken` when its records are where they belong."""

    records: list[UsageRecord] = field(default_factory=list)
    #: Positions up to which the records go: process, file, bytes.
    offsets: list[tuple[str, str, int]] = field(default_factory=list)
    #: Files that say nothing more: process, file.
    finished: list[tuple[str, str]] = field(default_factory=list)
    #: Dead processes, all of whose lines are in this batch.
    gone: list[str] = field(default_factory=list)
    #: There is more to read.
    more: bool = False


class UsageSpools(Protocol):
    """The workers' spools, as far as they are read. Blocks; called in threads, one call at a time."""

    def read(self) -> UsageBatch:
        """What came since the last batch that was taken. Raises OSError."""
        ...

    def taken(self, batch: UsageBatch) -> None:
        """Forget what a batch held: its records are safe elsewhere. Raises OSError."""
        ...

    def sync(self) -> None:
        """Put on the disk what may have to wait there for long. Raises OSError."""
        ...

    def backlog_bytes(self) -> int:
        """Room that they take on the disk."""
        ...

    def close(self) -> None:
        """Let go of them; the files stay for the next start."""
        ...


class UsageSink(Protocol):
    """Where usage records end up."""

    async def put(self, records: Sequence[UsageRecord]) -> None:
        """Keep each of them that is not kept already, told by its id. Raises Unavailable: nobody knows then
        which of them are kept, and all are offered again."""
        ...

    def settled(self) -> None:
        """All that an earlier life may have handed over is through; from now on each comes once, but for
        what `put` failed on."""
        ...

    async def close(self) -> None: ...


class RoutesStore(Protocol):
    """The last routes over a restart."""

    def load(self) -> Routes | None: ...

    def save(self, routes: Routes) -> None: ...


class Probe(Protocol):
    async def alive(self, endpoints: Sequence[EndpointRow]) -> frozenset[str]:
        """Ids of those that answer over HTTP now."""
        ...
