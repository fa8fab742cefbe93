"""What a decision asks for: changes to rows, committed together or not at all, and commands after that.

The store applies `changes` in one transaction under the lease's term; a claim that meets the unique
constraint fails the whole plan, and the next pass decides again. Commands follow from the rows, so a
lost one is repaired by the next complete Desired.
"""

from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.rows import (
    ActivationRow,
    AttemptRow,
    DeploymentRow,
    EvictionRow,
    LoadRecord,
    NodeRow,
    PortQuarantine,
    ReplicaRow,
    RouterRow,
    Tombstone,
)
from llmgw_kit.ids import ModelId, NodeId, ReplicaId, RouterId, ShardId


class Severity(Enum):
    TROUBLE = "trouble"
    NOTE = "note"
    INFO = "info"


@dataclass(frozen=True)
class PutReplica:
    """Insert or update; touches no claim."""

    replica: ReplicaRow


@dataclass(frozen=True)
class Reserve:
    """Write the replica with its shards, claim every device and port of them, and note the group epoch as
    used by the model; or fail as a whole."""

    replica: ReplicaRow


@dataclass(frozen=True)
class Release:
    """Free the devices and ports of these shards; ports go into quarantine."""

    replica_id: ReplicaId
    shard_ids: tuple[ShardId, ...]
    quarantine: tuple[PortQuarantine, ...]


@dataclass(frozen=True)
class DeleteReplica:
    """Forget a STOPPED replica; refused by the store while it holds a claim."""

    replica_id: ReplicaId


@dataclass(frozen=True)
class PutNode:
    node: NodeRow


@dataclass(frozen=True)
class JudgeNode:
    """Set or clear LOST and nothing else: a session accepted since the snapshot keeps its own columns."""

    node_id: NodeId
    lost_at: float | None


@dataclass(frozen=True)
class PutTombstone:
    tombstone: Tombstone


@dataclass(frozen=True)
class DropTombstone:
    node_id: NodeId
    shard_id: ShardId


@dataclass(frozen=True)
class PutActivation:
    """Open, or note a newer ask."""

    activation: ActivationRow


@dataclass(frozen=True)
class CloseActivation:
    model: ModelId
    #: "ready", "abandoned", "refused".
    outcome: str


@dataclass(frozen=True)
class PutRouter:
    router: RouterRow


@dataclass(frozen=True)
class DropRouter:
    router_id: RouterId


@dataclass(frozen=True)
class PutModel:
    name: ModelId
    model_json: str
    at: float


@dataclass(frozen=True)
class DropModel:
    name: ModelId


@dataclass(frozen=True)
class PutLoad:
    load: LoadRecord


@dataclass(frozen=True)
class PutDeployment:
    """An operator's wish; one that wishes nothing removes the row."""

    deployment: DeploymentRow


@dataclass(frozen=True)
class PutAttempt:
    attempt: AttemptRow


@dataclass(frozen=True)
class ForgetAttempts:
    """Of a model: it came up and stayed, its spec is new, or an operator says so."""

    model: ModelId
    #: None: all its profiles.
    profile: str | None = None


@dataclass(frozen=True)
class PutEviction:
    """Open a receipt, or write how it went on."""

    eviction: EvictionRow


@dataclass(frozen=True)
class RaiseIdleFloor:
    """Nothing counts as idle from before `at`; never goes back."""

    at: float


@dataclass(frozen=True)
class PutEvent:
    at: float
    kind: str
    subject: str
    text: str
    severity: Severity


Change = (
    PutReplica | Reserve | Release | DeleteReplica | PutNode | JudgeNode | PutTombstone | DropTombstone
    | PutActivation | CloseActivation | PutRouter | DropRouter | PutModel | DropModel | PutLoad | PutEvent
    | PutDeployment | PutAttempt | ForgetAttempts | PutEviction | RaiseIdleFloor
)  # fmt: skip


@dataclass(frozen=True)
class Start:
    """Start this shard of the replica as the rows now have it."""

    node_id: NodeId
    replica_id: ReplicaId
    shard_id: ShardId


@dataclass(frozen=True)
class Drain:
    node_id: NodeId
    shard_id: ShardId


@dataclass(frozen=True)
class Stop:
    node_id: NodeId
    shard_id: ShardId
    reason: str


@dataclass(frozen=True)
class FetchWeights:
    """Ask the mirror to have the model's weights; idempotent."""

    model: ModelId


Command = Start | Drain | Stop | FetchWeights


@dataclass(frozen=True)
class Plan:
    """Empty when the world is as desired: a second pass over the same snapshot plans nothing."""

    changes: tuple[Change, ...] = ()
    commands: tuple[Command, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.changes and not self.commands
