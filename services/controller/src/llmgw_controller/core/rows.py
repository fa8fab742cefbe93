"""Rows: what the store holds, and the controller's word alone. Times are seconds of the leader's term clock:
the database's wall clock at the takeover plus monotonic time since, so they never jump within a term.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, RouterId, SessionEpoch, ShardId


class Wish(Enum):
    """What is wanted of a replica. One way, but for a revocable drain, which `roster.cancel_drain` takes
    back: a replica that drains because somebody wished it is replaced, never revived."""

    SERVE = "serve"
    DRAIN = "drain"
    STOP = "stop"


class Phase(Enum):
    """What the controller has derived, and writes. Transitions: `replica.py`."""

    WANTED = "wanted"
    RESERVED = "reserved"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    UNPLACEABLE = "unplaceable"
    BACKOFF = "backoff"
    FAILED = "failed"


class Cause(Enum):
    """Why a replica exists: kept up by configuration, started by somebody's request, or started beside
    others because requests waited for them."""

    CONFIGURATION = "configuration"
    ACTIVATION = "activation"
    DEMAND = "demand"


@dataclass(frozen=True)
class ShardRow:
    shard_id: ShardId
    node_id: NodeId
    rank: int
    device_ids: tuple[DeviceId, ...]
    #: Sorted (name, port): "http" always.
    ports: tuple[tuple[str, int], ...]
    #: Exit was seen, or the node is LOST: its devices and ports are free again.
    released: bool = False

    def port(self, name: str) -> int | None:
        return dict(self.ports).get(name)


@dataclass(frozen=True)
class ReplicaRow:
    replica_id: ReplicaId
    model: ModelId
    profile: str
    spec_hash: str
    cause: Cause
    wish: Wish
    phase: Phase
    #: With UNPLACEABLE, BACKOFF, FAILED: why. With DRAINING, STOPPING, STOPPED: on whose behalf.
    reason: str | None
    #: With BACKOFF: not before. With READY: a drain was taken back, so not let go as idle before.
    until: float | None
    #: Grows with each start of the whole group, over all replicas of the model; 0: never placed. An endpoint
    #: is (replica, group epoch).
    group_epoch: int
    #: Failures since it was last READY for the profile's min_uptime_s.
    failures: int
    created_at: float
    #: Of the present phase.
    since: float
    ready_since: float | None
    #: Bearer credential of this generation, for engines that check one. None: never placed, or reserved by a
    #: plan whose pass has yet to draw it.
    credential: str | None
    #: Of the present group epoch; empty while none is placed.
    shards: tuple[ShardRow, ...] = ()
    #: Newest last, at most 20 lines: what moved it, for `InvalidTransition` and for people.
    story: tuple[str, ...] = ()
    #: With wish DRAIN: nobody but the controller wants it gone, so it is taken back, not cut, when it cannot
    #: end well. Its agent is not told to drain: the engine must be able to go on at once.
    revocable: bool = False
    #: With DRAINING: since this reading of their gauges nothing ran at its engines. None: something did, or
    #: it was not read since the drain began.
    quiet_at: float | None = None

    @property
    def endpoint_id(self) -> str:
        return f"{self.replica_id}@{self.group_epoch}"

    @property
    def holds_devices(self) -> bool:
        return any(not shard.released for shard in self.shards)

    @property
    def gpus_held(self) -> int:
        """Devices that are claimed for it."""
        return sum(len(shard.device_ids) for shard in self.shards if not shard.released)


class Schedulability(Enum):
    SCHEDULABLE = "schedulable"
    CORDONED = "cordoned"
    DRAINING = "draining"


@dataclass(frozen=True)
class DeviceRow:
    """Last known inventory: outlives the session, so that a silent node's claims still count."""

    device_id: DeviceId
    index: int
    gpu_class: str
    memory_total_bytes: int | None


@dataclass(frozen=True)
class NodeRow:
    node_id: NodeId
    boot_id: str
    agent_instance: str
    version: str
    address: str
    fabrics: tuple[str, ...]
    pool: str | None
    #: Both inclusive; None: the agent named none, nothing is placed there.
    engine_ports: tuple[int, int] | None
    devices: tuple[DeviceRow, ...]
    schedulability: Schedulability
    #: Of the newest session ever accepted.
    session_epoch: SessionEpoch
    last_heard: float
    #: Set when judged LOST; cleared when it is heard again and its tombstones are gone.
    lost_at: float | None
    #: Why an operator set it aside.
    reason: str | None = None


@dataclass(frozen=True)
class Tombstone:
    """A shard given up with its node. The node takes no work until its exit was seen."""

    node_id: NodeId
    shard_id: ShardId
    replica_id: ReplicaId
    since: float


@dataclass(frozen=True)
class PortQuarantine:
    """A port just freed: late packets of the old engine's clients must not meet a new one."""

    node_id: NodeId
    port: int
    until: float


@dataclass(frozen=True)
class ActivationRow:
    """One open start of a cold model, however many routers ask."""

    model: ModelId
    opened_at: float
    #: Newest ask; nobody asking any more ends it.
    asked_at: float
    #: An operator's: open until then although nobody repeats it.
    kept_until: float | None = None


@dataclass(frozen=True)
class RouterRow:
    """A member: counted for idleness until it says goodbye or is forgotten."""

    router_id: RouterId
    incarnation: str
    #: When a leader first met this incarnation.
    seen_at: float
    #: An earlier incarnation of this id ended without a goodbye, proven dead at this time: it counts as
    #: an ask for everything, for what it picked in its last tick died with it. None: never.
    crashed_at: float | None = None


@dataclass(frozen=True)
class LoadRecord:
    """Measured start of a (model, profile, class): what an ETA is made of. Newest few are kept."""

    model: ModelId
    profile: str
    gpu_class: str
    seconds: float
    at: float
    #: Parts of it, as the slowest shard's agent measured them; None: unknown.
    fetch_s: float | None = None
    load_s: float | None = None
    warm_up_s: float | None = None
    #: Every node held the weights before; None: unknown.
    weights_here: bool | None = None
    #: Most that any device was seen to hold for it.
    memory_bytes: int | None = None
    engine_version: str | None = None
    spec_hash: str | None = None


@dataclass(frozen=True)
class DeploymentRow:
    """What operators wish of a model beside its spec. No row: nothing."""

    model: ModelId
    #: Not started by anything, whatever `replicas` says.
    stopped: bool
    #: None: as the spec says.
    pinned: bool | None
    changed_at: float


@dataclass(frozen=True)
class AttemptRow:
    """A start that failed, and was somebody's fault."""

    model: ModelId
    profile: str
    gpu_class: str
    spec_hash: str
    replica_id: ReplicaId
    node_ids: tuple[NodeId, ...]
    #: Stable word: "crashed", "never_ready", ...
    reason: str
    text: str
    at: float


class EvictionState(Enum):
    DRAINING = "draining"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


#: First line of the evidence where an operator ordered it.
ORDERED = "ordered by an operator"


@dataclass(frozen=True)
class EvictionRow:
    """A receipt: who left, for whom, on what evidence, and what it cost."""

    #: The victim's endpoint id, "#", and the second in which it was decided: never given twice.
    eviction_id: str
    victim_replica_id: ReplicaId
    victim_model: ModelId
    beneficiary_model: ModelId
    beneficiary_replica_id: ReplicaId | None
    decided_at: float
    state: EvictionState
    text: str
    #: What the verdict stood on, a line each.
    evidence: tuple[str, ...]
    gpus: int
    idle_s: float
    predicted_free_s: float | None
    #: Measured cost of bringing it back.
    reload_s: float | None
    freed_at: float | None = None
    regretted_at: float | None = None
    #: When every member router had put the victim aside: only newer reports confirm that it is idle.
    acknowledged_at: float | None = None

    @property
    def endpoint_id(self) -> str:
        """Of the engine that is to leave."""
        return self.eviction_id.partition("#")[0]

    @property
    def ordered(self) -> bool:
        """An operator's word, whatever the policy."""
        return ORDERED in self.evidence


@dataclass(frozen=True)
class Stored:
    """Everything the store holds that decisions need, as of one transaction."""

    nodes: dict[NodeId, NodeRow] = field(default_factory=dict)
    replicas: dict[ReplicaId, ReplicaRow] = field(default_factory=dict)
    tombstones: tuple[Tombstone, ...] = ()
    quarantine: tuple[PortQuarantine, ...] = ()
    activations: dict[ModelId, ActivationRow] = field(default_factory=dict)
    routers: dict[RouterId, RouterRow] = field(default_factory=dict)
    loads: tuple[LoadRecord, ...] = ()
    #: Highest group epoch ever reserved for a model; outlives its replicas, so that an endpoint or a shard is
    #: never named like an earlier one that some router or agent may still remember.
    epochs: dict[ModelId, int] = field(default_factory=dict)
    #: Stored models as JSON text by name; parsed by `catalog_file.py`.
    models: dict[ModelId, str] = field(default_factory=dict)
    #: When each was first stored.
    created: dict[ModelId, float] = field(default_factory=dict)
    #: Operators' wishes.
    deployments: dict[ModelId, DeploymentRow] = field(default_factory=dict)
    #: Failed starts, oldest first; the newest few of each (model, profile, class).
    attempts: tuple[AttemptRow, ...] = ()
    #: Open ones and those of the last day, by id.
    evictions: dict[str, EvictionRow] = field(default_factory=dict)
    #: Nothing counts as idle from before: routers that had crashed and are forgotten. None: no such.
    idle_floor: float | None = None

    # What a pass asks of the rows a thousand times, found once; no field, so no part of equality. `apply`
    # carries `by_model` over from one change to the next.

    @cached_property
    def sorted_replicas(self) -> tuple[ReplicaRow, ...]:
        """By id: the order of every walk, so that equal rows give equal plans."""
        return tuple(self.replicas[key] for key in sorted(self.replicas))

    @cached_property
    def by_model(self) -> dict[ModelId, tuple[ReplicaRow, ...]]:
        """The rows of each model that has any, by id."""
        found: dict[ModelId, list[ReplicaRow]] = {}
        for row in self.sorted_replicas:
            found.setdefault(row.model, []).append(row)
        return {model: tuple(rows) for model, rows in found.items()}

    @cached_property
    def by_node(self) -> dict[NodeId, tuple[ReplicaRow, ...]]:
        """The rows with a shard on each node that has any, released or not, by id."""
        found: dict[NodeId, dict[ReplicaId, ReplicaRow]] = {}
        for row in self.sorted_replicas:
            for shard in row.shards:
                found.setdefault(shard.node_id, {})[row.replica_id] = row
        return {node_id: tuple(rows.values()) for node_id, rows in found.items()}

    @cached_property
    def leaving_for(self) -> dict[str, EvictionRow]:
        """Open evictions by the endpoint that leaves."""
        return {
            one.endpoint_id: one
            for _, one in sorted(self.evictions.items())
            if one.state is EvictionState.DRAINING
        }

    @cached_property
    def attempts_of(self) -> dict[ModelId, tuple[AttemptRow, ...]]:
        """The failed starts of each model that has any, oldest first."""
        found: dict[ModelId, list[AttemptRow]] = {}
        for attempt in self.attempts:
            found.setdefault(attempt.model, []).append(attempt)
        return {model: tuple(attempts) for model, attempts in found.items()}

    @cached_property
    def loads_of(self) -> dict[ModelId, tuple[LoadRecord, ...]]:
        """The measured starts of each model that has any, oldest first."""
        found: dict[ModelId, list[LoadRecord]] = {}
        for load in self.loads:
            found.setdefault(load.model, []).append(load)
        return {model: tuple(loads) for model, loads in found.items()}

    @cached_property
    def stones(self) -> Counter[NodeId]:
        """Tombstones of each node."""
        return Counter(stone.node_id for stone in self.tombstones)
