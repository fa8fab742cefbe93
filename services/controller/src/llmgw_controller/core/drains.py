"""Drains: when a draining replica has finished, and when waiting longer helps nobody."""

from enum import Enum

from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.roster import IDLE
from llmgw_controller.core.state import ReplicaRow, ShardState, Snapshot


class DrainEnd(Enum):
    """How a drain ended, for its story."""

    DRAINED = "drained"
    QUIET = "a router did not acknowledge; the engines say that nothing runs"
    DEADLINE = "not drained within its time"
    SHARD_EXITED = "a shard exited while draining"
    NODE_LOST = "its node is lost"

    @property
    def clean(self) -> bool:
        """No request was cut short, as far as anybody knows."""
        return self in (DrainEnd.DRAINED, DrainEnd.QUIET)


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
    return _engines_quiet(snapshot, row, gauge_needed=False)


def _engines_quiet(snapshot: Snapshot, row: ReplicaRow, *, gauge_needed: bool) -> bool:
    """No engine of it says that something runs; with `gauge_needed`, each says that nothing does."""
    for shard in row.shards:
        heard = snapshot.heard.get(shard.node_id)
        report = report_of(snapshot, shard)
        if heard is None or report is None or heard.heard_at <= row.since:
            return False  # A gauge read before the drain began says nothing of it.
        if report.running or (report.running is None and (gauge_needed or report.running_unknown)):
            return False
    return True


def end_of_drain(snapshot: Snapshot, row: ReplicaRow, now: float) -> DrainEnd | None:
    """Why draining is over; None: let it finish."""
    if any(shard.released for shard in row.shards):
        return DrainEnd.NODE_LOST
    for shard in row.shards:
        report = report_of(snapshot, shard)
        if report is not None and report.state is ShardState.EXITED:
            return DrainEnd.SHARD_EXITED
    if is_drained(snapshot, row):
        return DrainEnd.DRAINED
    waited_s = now - row.since
    # A router that is gone without a goodbye never acknowledges. Where the stop is wanted anyway the engine's
    # own word will do; a replica that only leaves as idle can wait for all.
    patient = row.reason == IDLE or waited_s < snapshot.intervals.router_stale_s
    if not patient and _engines_quiet(snapshot, row, gauge_needed=True):
        return DrainEnd.QUIET
    return DrainEnd.DEADLINE if waited_s >= drain_timeout_s(snapshot, row) else None
