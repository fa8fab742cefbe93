"""What agents say, as heard in this term; nothing of it is stored. Rows and words are two pens, never one."""

from dataclasses import dataclass
from enum import Enum

from llmgw_kit.ids import DeviceId, NodeId, ReplicaId, SessionEpoch, ShardId


class ShardState(Enum):
    """The agent's word on one shard, as heard."""

    FETCHING = "fetching"
    VERIFYING = "verifying"
    LAUNCHING = "launching"
    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    EXITED = "exited"


@dataclass(frozen=True)
class Exit:
    #: Both None when the end was not seen.
    code: int | None
    signal: int | None
    #: "stopped", "crashed", "port_taken", "weights_failed", "never_ready", "orphan", ...
    reason: str
    message: str


@dataclass(frozen=True)
class ShardReport:
    shard_id: ShardId
    replica_id: ReplicaId
    group_epoch: int
    spec_hash: str
    state: ShardState
    exit: Exit | None
    pid: int | None
    pid_start_ticks: int | None
    ports: tuple[tuple[str, int], ...]
    device_ids: tuple[DeviceId, ...]
    progress: float | None
    probed: bool
    #: The engine's own gauge; None: none, or unreadable (then `running_unknown` says why).
    running: int | None
    running_unknown: str | None
    load_s: float | None
    adopted: bool
    #: Why the newest probe was not answered; None: none failed since the last that was.
    probe_error: str | None = None
    #: Requests run and no token came for so long; 0: progress or rest; None: it cannot be told.
    stalled_s: float | None = None
    fetch_s: float | None = None
    warm_up_s: float | None = None
    engine_version: str | None = None
    #: Most that each device was seen to hold for it.
    memory_used_bytes: tuple[tuple[DeviceId, int], ...] = ()
    #: Bearer credential it checks, of its generation.
    credential: str | None = None


class FaultClass(Enum):
    """How bad a device's fault is."""

    #: The program's own doing: the device is healthy.
    APP = "app"
    #: May pass: unhealthy until it was quiet for a while.
    SUSPECT = "suspect"
    #: Needs a reset or a repair.
    FATAL = "fatal"


@dataclass(frozen=True)
class DeviceFault:
    fault_class: FaultClass
    #: "xid_79", ...
    reason: str
    text: str
    #: Unix seconds by the node's clock.
    at: float


@dataclass(frozen=True)
class ForeignProcess:
    pid: int
    name: str
    user: str
    memory_bytes: int | None


class DeviceState(Enum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    MISSING = "missing"


@dataclass(frozen=True)
class DeviceReport:
    device_id: DeviceId
    index: int
    gpu_class: str
    vendor: str
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    foreign_used_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    driver_version: str | None
    state: DeviceState
    reason: str | None
    #: Unix seconds by the node's clock; None: since before it was watched.
    since: float | None = None
    #: The newest, healed or not.
    fault: DeviceFault | None = None
    foreign: tuple[ForeignProcess, ...] = ()
    #: Things to know that hurt nobody yet, for people.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeldWeights:
    model: str
    version: str
    size_bytes: int
    complete: bool
    #: On its way there, and how far (0..1; None: unknown).
    fetching: bool = False
    progress: float | None = None
    #: Why the newest prefetch of it failed.
    error: str | None = None
    #: Shards started from it that have not exited, by the agent's own journal.
    shard_ids: tuple[ShardId, ...] = ()


@dataclass(frozen=True)
class NodeHeard:
    """What one agent said in its newest session of this term. No entry: not heard in this term."""

    node_id: NodeId
    session_epoch: SessionEpoch
    #: The stream is open.
    connected: bool
    #: Term clock of the newest message.
    heard_at: float
    devices: tuple[DeviceReport, ...]
    shards: dict[ShardId, ShardReport]
    weights: tuple[HeldWeights, ...]
    engines: tuple[str, ...]
    disk_free_bytes: int | None
    #: Shards of the Desired that it had applied before its newest complete report: whichever of them it did
    #: not list is not there. None: its release does not say so.
    answered: frozenset[ShardId] | None = None
