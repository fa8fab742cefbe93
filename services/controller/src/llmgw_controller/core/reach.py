"""Reach: which replicas can be reached and routed to at one moment, found once for all who ask of it.

Of a whole table or view; a pass moves rows between two questions and asks of each row (`replica.py`).
"""

from dataclasses import dataclass

from llmgw_controller.core.replica import is_routable, is_unreachable
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ReplicaId


@dataclass(frozen=True)
class Reach:
    """As `is_routable` and `is_unreachable` say of each."""

    routable: frozenset[ReplicaId]
    unreachable: frozenset[ReplicaId]


def reach(snapshot: Snapshot, now: float) -> Reach:
    """Of all replicas."""
    basis = (snapshot.stored, snapshot.heard)
    moment = (now, snapshot.term_started, snapshot.awake_since, snapshot.asleep_since, snapshot.intervals)
    before: tuple[tuple[object, object], object, Reach] | None = snapshot.found.get("reach")
    if before is None or before[0][0] is not basis[0] or before[0][1] is not basis[1] or before[1] != moment:
        rows = snapshot.stored.sorted_replicas
        found = Reach(
            frozenset(row.replica_id for row in rows if is_routable(row, snapshot, now)),
            frozenset(row.replica_id for row in rows if is_unreachable(row, snapshot, now)),
        )
        before = snapshot.found["reach"] = (basis, moment, found)
    return before[2]
