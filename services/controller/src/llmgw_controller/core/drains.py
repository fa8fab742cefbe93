"""Drains: when a draining replica has finished, and when waiting longer helps nobody."""

from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.state import ReplicaRow, ShardState, Snapshot

#: For a replica whose profile has left the catalog; the catalog's own default.
DRAIN_TIMEOUT_S = 300.0


def drain_timeout_s(snapshot: Snapshot, row: ReplicaRow) -> float:
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    return profile.drain_timeout_s if profile else DRAIN_TIMEOUT_S


def is_drained(snapshot: Snapshot, row: ReplicaRow) -> bool:
    """Every member router has finished with it, and no engine of it says that something runs."""
    if snapshot.stored.routers and row.endpoint_id not in snapshot.drained:
        return False
    for shard in row.shards:
        heard = snapshot.heard.get(shard.node_id)
        report = report_of(snapshot, shard)
        if heard is None or report is None or heard.heard_at <= row.since:
            return False  # A gauge read before the drain began says nothing of it.
        if report.running or (report.running is None and report.running_unknown):
            return False
    return True


def wants_stop(snapshot: Snapshot, row: ReplicaRow, now: float) -> str | None:
    """Why draining is over; None: let it finish."""
    if any(shard.released for shard in row.shards):
        return "its node is lost"
    for shard in row.shards:
        report = report_of(snapshot, shard)
        if report is not None and report.state is ShardState.EXITED:
            return "a shard exited while draining"
    if is_drained(snapshot, row):
        return "drained"
    limit_s = drain_timeout_s(snapshot, row)
    return f"not drained within {limit_s:.0f} s" if now - row.since >= limit_s else None
