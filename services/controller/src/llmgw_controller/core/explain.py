"""Words for why something does or does not fit; made by the planner itself, so never another story."""

from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.memory import UNKNOWN, MemoryClaim
from llmgw_controller.core.words import counted, sized
from llmgw_kit.ids import DeviceId, NodeId, ReplicaId


class Reason(Enum):
    """Why a node cannot take a shard, in the order the filters are asked; a node counts for the first."""

    WRONG_CLASS = "wrong_class"
    TOO_FEW_DEVICES = "too_few_devices"
    TOO_LITTLE_MEMORY = "too_little_memory"
    NOT_WHOLE = "not_whole"
    POOL = "pool"
    PINNED_ELSEWHERE = "pinned_elsewhere"
    NO_FABRIC = "no_fabric"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    NOT_HEARD = "not_heard"
    TOMBSTONES = "tombstones"
    CORDONED = "cordoned"
    DRAINING = "draining"
    ENGINE_MISSING = "engine_missing"
    UNHEALTHY_DEVICES = "unhealthy_devices"
    PROMISED = "promised"
    HELD_BY_IDLE = "held_by_idle"
    FOREIGN_USE = "foreign_use"
    NOT_ENOUGH_FREE = "not_enough_free"
    PORTS_EXHAUSTED = "ports_exhausted"


#: For people; each goes with a count of nodes.
TEXT: dict[Reason, str] = {
    Reason.WRONG_CLASS: "wrong GPU class for the profile",
    Reason.TOO_FEW_DEVICES: "fewer GPUs of the class than needed",
    Reason.TOO_LITTLE_MEMORY: "GPUs with too little memory",
    Reason.NOT_WHOLE: "GPUs of other classes beside those of the profile",
    Reason.POOL: "in another pool",
    Reason.PINNED_ELSEWHERE: "not among the nodes the profile names",
    Reason.NO_FABRIC: "on no fabric",
    Reason.LOST: "lost",
    Reason.UNREACHABLE: "unreachable",
    Reason.NOT_HEARD: "not connected to this leader yet",
    Reason.TOMBSTONES: "back from lost, old engines not seen to exit yet",
    Reason.CORDONED: "cordoned",
    Reason.DRAINING: "draining",
    Reason.ENGINE_MISSING: "without the profile's engine",
    Reason.UNHEALTHY_DEVICES: "a GPU is missing or unhealthy",
    Reason.PROMISED: "GPUs kept for a replica that is placed first",
    Reason.HELD_BY_IDLE: "GPUs claimed by idle replicas",
    Reason.FOREIGN_USE: "GPUs in foreign use",
    Reason.NOT_ENOUGH_FREE: "GPUs claimed by replicas that are not idle",
    Reason.PORTS_EXHAUSTED: "too few free engine ports",
}


class Fit(Enum):
    """Of one profile or one model, best first."""

    NOW = "fits_now"
    AFTER_EVICTION = "fits_after_eviction"
    NEVER = "never_fits"


@dataclass(frozen=True)
class Filtered:
    """Nodes that fell to one reason."""

    reason: Reason
    node_ids: tuple[NodeId, ...]


@dataclass(frozen=True)
class NearMiss:
    """A node that would fit if these idle replicas left."""

    node_id: NodeId
    free: int
    needed: int
    evict: tuple[ReplicaId, ...]


@dataclass(frozen=True)
class Spot:
    node_id: NodeId
    device_ids: tuple[DeviceId, ...]


@dataclass(frozen=True)
class Explanation:
    """One profile against all nodes: `considered` = sum of `filters` + `fitting`."""

    profile: str
    fit: Fit
    needs: str
    nodes_needed: int
    considered: int
    filters: tuple[Filtered, ...]
    fitting: tuple[NodeId, ...]
    near_misses: tuple[NearMiss, ...]
    #: With fit AFTER_EVICTION: the idle replicas whose leaving makes the room, as few as possible.
    leaving: tuple[ReplicaId, ...]
    #: With fit NOW: where it goes.
    spots: tuple[Spot, ...]
    #: On each device, and where the number comes from.
    memory: MemoryClaim = UNKNOWN
    #: Of the largest device of the class on a known node; None: there is none, or its size is unknown.
    largest_bytes: int | None = None
    #: On each node.
    ports_needed: int = 1
    #: With fit AFTER_EVICTION: where it would go.
    ceiling: tuple[NodeId, ...] = ()

    def reason(self) -> str:
        """One line for a row; stable while nothing changes, so that it is not written at every pass."""
        if not self.considered:
            return f"needs {self.needs}; no node is known"
        counts = ", ".join(f"{TEXT[one.reason]}: {len(one.node_ids)}" for one in self.filters)
        if self.fitting:
            counts = f"{len(self.fitting)} free and fitting of {self.nodes_needed} on one fabric; {counts}"
        counts = counts or "none on one fabric"
        return f"needs {self.needs}; of {counted(self.considered, 'node')}: {counts}{self._numbers()}"

    def _numbers(self) -> str:
        """Of the limits that were met, those with a number that does not move by itself."""
        met = {one.reason for one in self.filters}
        found = ""
        if Reason.TOO_LITTLE_MEMORY in met and self.largest_bytes is not None:
            found += f"; the largest has {sized(self.largest_bytes)}"
        if Reason.PORTS_EXHAUSTED in met:
            found += f"; it takes {counted(self.ports_needed, 'port')} a node"
        return found
