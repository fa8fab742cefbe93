"""What agent and controller say to each other, as core types; wire.py knows the messages."""

from dataclasses import dataclass

from llmgw_agent.core.devices import Device, Inventory
from llmgw_agent.core.load import Level, Load, Progress
from llmgw_agent.core.plan import Wanted
from llmgw_agent.core.shard import Shard
from llmgw_agent.core.spec import ShardSpec
from llmgw_agent.core.weights import Held, WeightsKey
from llmgw_kit.ids import ShardId

# -- heard ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Welcome:
    session_epoch: int
    beat_interval_s: float
    leader_name: str
    #: HOST:PORT of all controllers the leader knows.
    controllers: tuple[str, ...]


@dataclass(frozen=True)
class DesiredList:
    """The complete list for this node."""

    version: int
    shards: tuple[Wanted, ...]


@dataclass(frozen=True)
class StartWord:
    command_id: str
    spec: ShardSpec
    #: Why nothing can be started from it.
    refused: str | None = None


@dataclass(frozen=True)
class DrainWord:
    command_id: str
    shard_id: ShardId


@dataclass(frozen=True)
class StopWord:
    command_id: str
    shard_id: ShardId
    reason: str


@dataclass(frozen=True)
class RemoveWord:
    command_id: str
    key: WeightsKey
    #: Also while a shard maps it.
    force: bool = False


@dataclass(frozen=True)
class PrefetchWord:
    command_id: str
    key: WeightsKey
    mirror_urls: tuple[str, ...]


@dataclass(frozen=True)
class LogsWord:
    command_id: str
    shard_id: ShardId
    tail_lines: int
    follow: bool


@dataclass(frozen=True)
class DriveWord:
    command_id: str
    shard_id: ShardId
    load: Load


@dataclass(frozen=True)
class CancelWord:
    """Of a LogsWord or a DriveWord."""

    command_id: str


@dataclass(frozen=True)
class Rejected:
    code: str
    text: str
    leader_address: str | None


@dataclass(frozen=True)
class MoveOn:
    leader_address: str | None


@dataclass(frozen=True)
class LeaderBeat:
    """Still there."""


@dataclass(frozen=True)
class Unreadable:
    """A message this agent does not understand: of a newer controller, or wrong."""

    text: str
    command_id: str | None = None


#: What takes a while, and is answered when it is done or bit by bit.
LongWord = RemoveWord | PrefetchWord | LogsWord | DriveWord

Word = (
    Welcome | DesiredList | StartWord | DrainWord | StopWord | LongWord | CancelWord | Rejected | MoveOn
    | LeaderBeat | Unreadable
)  # fmt: skip


@dataclass(frozen=True)
class Heard:
    """A word, under the lease term of who says it."""

    term: int
    word: Word


# -- said ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    node_id: str
    boot_id: str
    agent_instance: str
    version: str
    highest_term_seen: int | None
    inventory: Inventory
    shards: tuple[Shard, ...]
    weights: tuple[Held, ...]


@dataclass(frozen=True)
class DevicesReport:
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class ShardsReport:
    shards: tuple[Shard, ...]
    #: These are all there are, after the Desired of this version was applied; None: some of them.
    complete_after: int | None = None


@dataclass(frozen=True)
class WeightsReport:
    weights: tuple[Held, ...]
    disk_free_bytes: int | None


@dataclass(frozen=True)
class Result:
    command_id: str
    accepted: bool
    message: str
    freed_bytes: int | None = None


@dataclass(frozen=True)
class LogPiece:
    command_id: str
    data: bytes
    #: Lines are missing before it.
    gap: bool = False
    end: bool = False
    #: With `end`: why there is no more; None: all was read.
    error: str | None = None


@dataclass(frozen=True)
class DriveReport:
    """How far a level is, or the level, or the end."""

    command_id: str
    level: Level | None = None
    progress: Progress | None = None
    end: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Beat:
    sequence: int


Said = (
    Hello | Inventory | DevicesReport | ShardsReport | WeightsReport | Result | LogPiece | DriveReport | Beat
)  # fmt: skip
