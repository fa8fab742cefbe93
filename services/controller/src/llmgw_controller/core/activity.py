"""What the routers' map in Redis says of each replica, and what follows: busy, idle or unknown.

Busy, Idle and Unknown are three types without order: no code can compare unknown with a number by
accident. The rules are architecture.md's section on idleness, numbered here as there.
"""

from dataclasses import dataclass, field

from llmgw_kit.ids import ReplicaId, RouterId


@dataclass(frozen=True)
class RouterReport:
    """A router's own heartbeat in Redis; times by Redis's clock, seconds."""

    router_id: RouterId
    incarnation: str
    at: float
    #: The epoch of the map this router has sent in whole.
    epoch: str
    in_flight: dict[ReplicaId, int]
    held: dict[str, int]


@dataclass(frozen=True)
class ActivityMap:
    """One reading of the whole map. None for what was missing."""

    #: Redis's clock at the reading.
    now: float
    watching_since: float | None
    epoch: str | None
    #: Newest pick or release of each replica.
    touched: dict[ReplicaId, float]
    routers: dict[RouterId, RouterReport]


@dataclass(frozen=True)
class Activity:
    """The newest reading, or why there is none ("redis_unreachable", "redis_not_configured")."""

    map: ActivityMap | None = None
    missing_reason: str = "redis_not_configured"


@dataclass(frozen=True)
class Busy:
    #: None when only the engine's own gauge says so.
    in_flight: int | None
    direct_traffic: bool = False


@dataclass(frozen=True)
class Idle:
    #: Seconds of idleness up to the reading: free of anybody's clock.
    for_s: float
    never_asked: bool


@dataclass(frozen=True)
class Unknown:
    reason: str


Verdict = Busy | Idle | Unknown


@dataclass(frozen=True)
class Verdicts:
    by_replica: dict[ReplicaId, Verdict] = field(default_factory=dict)
