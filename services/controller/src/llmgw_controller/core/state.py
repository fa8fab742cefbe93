"""The snapshot: rows of the store and words of the agents, with the settings that decisions use.

Reachability is computed from what was heard and the clock, and stands in no row.
"""

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from llmgw_controller.core.activity import Activity
from llmgw_controller.core.catalog import Catalog
from llmgw_controller.core.heard import NodeHeard
from llmgw_controller.core.rows import Stored
from llmgw_kit.ids import LeaseTerm, ModelId, NodeId


@dataclass(frozen=True)
class ControllerSeen:
    """A controller that could lead, as it last announced itself."""

    name: str
    #: Where agents and routers reach it.
    address: str
    #: Of what its decisions depend on; equal in all controllers, or they would decide differently.
    config_hash: str
    version: str


class EvictionPolicy(Enum):
    OFF = "off"
    #: Shown in the status, done by nobody.
    SUGGEST = "suggest"
    ON = "on"


@dataclass(frozen=True)
class Intervals:
    """The settings that decisions use; seconds."""

    unreachable_after_s: float = 15.0
    lost_after_s: float = 300.0
    learning_window_s: float = 30.0
    backoff_base_s: float = 5.0
    backoff_max_s: float = 300.0
    #: Starts of one group before FAILED.
    max_failures: int = 6
    #: An activation that no router repeated for so long is closed.
    activation_stale_s: float = 30.0
    port_quarantine_s: float = 60.0
    router_stale_s: float = 15.0
    #: Foreign memory from here on makes a device "foreign use", not free.
    foreign_bytes: int = 512 * 1024 * 1024
    #: Hold LOST back when more than this share of the nodes is silent together.
    brake_share: float = 0.5
    eviction: EvictionPolicy = EvictionPolicy.OFF
    #: Evictions in any hour: of the cluster, and of one model's replicas.
    evictions_per_hour: int = 12
    evictions_per_model_per_hour: int = 3
    #: Idle replicas younger than this many of their own measured loads are not evicted.
    residency_loads: float = 3.0
    #: A victim asked for again within so many of its loads was evicted in error.
    regret_loads: float = 2.0
    #: Longest that somebody waits for room before the budget and residency give way.
    eviction_patience_s: float = 600.0
    #: Requests held or queued without a break for so long add a replica.
    scale_up_after_s: float = 30.0
    #: The same failure on so many distinct nodes is the profile's.
    failing_nodes: int = 2


@dataclass(frozen=True)
class Watched:
    """What a leader has seen over several of its looks, where one look says too little. In memory: a new
    leader begins anew, which makes it slower, never wrong. Times are of the term clock."""

    #: Endpoint id -> when its engines were last seen to run something.
    ran_at: dict[str, float] = field(default_factory=dict)
    #: Model -> since when its requests have waited for a free place at every look.
    pressed_since: dict[ModelId, float] = field(default_factory=dict)
    #: Model that may grow -> replicas it had before the rollout under way.
    standing: dict[ModelId, int] = field(default_factory=dict)
    #: Endpoint id on its way up -> whether its nodes held the weights when it was first seen.
    held_before: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """All that a decision may look at. `now` is passed beside it."""

    term: LeaseTerm
    #: When this leader took over, on the term clock.
    term_started: float
    catalog: Catalog
    stored: Stored
    heard: dict[NodeId, NodeHeard]
    activity: Activity
    #: Endpoint ids that every member router has acknowledged as drained.
    drained: frozenset[str]
    #: Model -> requests that routers hold for it, summed over fresh routers.
    held: dict[ModelId, int]
    intervals: Intervals
    #: Those that announced themselves lately; shown, never decided on.
    controllers: tuple[ControllerSeen, ...] = ()
    #: When this leader last found that it had itself been asleep (frozen, or overloaded): nobody's silence is
    #: counted from before that. None: not in this term.
    awake_since: float | None = None
    #: When that sleep had begun, at the earliest; None with `awake_since`.
    asleep_since: float | None = None
    watched: Watched = Watched()
    #: The rows did not outlive the leader before: what runs and no row knows is taken up (`strangers.py`).
    adopts: bool = False
    #: What was found of this snapshot and may serve again, also after a change of it and of later snapshots:
    #: each entry carries what it was found from, and is found anew where that is another. No part of what is
    #: known. A pass and several views may use one at the same time, in threads: an entry is only ever put in
    #: whole, and none is walked through that may still grow.
    found: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def holders(self) -> dict[tuple[str, str], frozenset[NodeId]]:
        """(model, version) -> the nodes that hold all of it, as last heard."""
        found: dict[tuple[str, str], set[NodeId]] = {}
        for node_id, heard in self.heard.items():
            for held in heard.weights:
                if held.complete:
                    found.setdefault((held.model, held.version), set()).add(node_id)
        return {weights: frozenset(nodes) for weights, nodes in found.items()}
