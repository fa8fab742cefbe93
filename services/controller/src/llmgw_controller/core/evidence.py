"""Evidence: what a verdict of idle stood on, a line for each witness, for the receipt that outlives it."""

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.idleness import fresh_routers
from llmgw_controller.core.rows import ReplicaRow
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import lasting


def evidence(snapshot: Snapshot, row: ReplicaRow, idle: Idle) -> tuple[str, ...]:
    """Routers first, then engines, then what follows from them."""
    activity = snapshot.activity.map
    lines = []
    if activity is not None:
        fresh = fresh_routers(snapshot)
        for name in sorted(snapshot.stored.routers):
            if (report := fresh.get(name)) is not None:
                age = lasting(activity.now - report.at)
                lines.append(
                    f"router {name}: report {age} old, {report.in_flight.get(row.replica_id, 0)} in flight"
                )
        if not snapshot.stored.routers:
            lines.append("no router is a member: nobody sends anything")
    for shard in row.shards:
        engine = report_of(snapshot, shard)
        if engine is not None and engine.running is not None:
            lines.append(f"engine on {shard.node_id}: {engine.running} running by its own gauge")
    asked = "never asked since it was watched" if idle.never_asked else "asked before that"
    lines.append(f"idle {lasting(idle.for_s)}, {asked}")
    return tuple(lines)


def confirmed_since(snapshot: Snapshot, since: float, now: float) -> bool:
    """Every member router has reported since then. Ages cross from Redis's clock to ours, times do not."""
    activity = snapshot.activity.map
    if activity is None:
        return False
    fresh = fresh_routers(snapshot)
    return all(
        name in fresh and now - (activity.now - fresh[name].at) > since for name in snapshot.stored.routers
    )
