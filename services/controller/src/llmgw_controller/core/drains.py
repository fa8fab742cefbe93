"""Drains: when a draining replica has finished, and when waiting longer helps nobody.

A drain ends well when every member router says that nothing of it runs there any more, and no engine
says otherwise. What happens when a router never says so depends on who wants the replica gone. A stop
that somebody wished goes on: once the engines' gauges were zero twice, or at the profile's deadline. A
drain that only the controller wants is revocable, and is taken back.
"""

from enum import Enum

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.hearing import is_learning, report_of
from llmgw_controller.core.rows import ReplicaRow
from llmgw_controller.core.state import Snapshot


class DrainEnd(Enum):
    """How a drain ended, for its story."""

    DRAINED = "drained"
    QUIET = "a router did not acknowledge; the engines said twice that nothing runs"
    DEADLINE = "not drained within its time"
    SHARD_EXITED = "a shard exited while draining"
    NODE_LOST = "its node is lost"
    TAKEN_BACK = "not every router acknowledged, and nobody needs it to stop"

    @property
    def clean(self) -> bool:
        """No request was cut short, as far as anybody knows."""
        return self in (DrainEnd.DRAINED, DrainEnd.QUIET)


#: For a replica whose profile has left the catalog; the catalog's own default.
DRAIN_TIMEOUT_S = 300.0

#: Least time between two readings of a gauge that count as two: an agent's default beat. Any message of an
#: agent moves `heard_at`, but only a beat need carry gauges read anew.
READINGS_APART_S = 5.0


def drain_timeout_s(snapshot: Snapshot, row: ReplicaRow) -> float:
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    return profile.drain_timeout_s if profile else DRAIN_TIMEOUT_S


def is_drained(snapshot: Snapshot, row: ReplicaRow) -> bool:
    """Every member router has finished with it, and no engine of it says that something runs."""
    if snapshot.stored.routers and row.endpoint_id not in snapshot.drained:
        return False
    return _engines_quiet(snapshot, row)


def quiet_since(snapshot: Snapshot, row: ReplicaRow) -> float | None:
    """When the engines' own gauges were first read as zero in this drain; None: something runs, or there is
    no gauge that says otherwise. Kept in the row, so that it outlives a pass and a leader."""
    if not _engines_quiet(snapshot, row) or not _has_gauge(snapshot, row):
        return None
    return row.quiet_at if row.quiet_at is not None else max(_heard_at(snapshot, row))


def end_of_drain(snapshot: Snapshot, row: ReplicaRow, now: float) -> DrainEnd | None:
    """Why draining is over; None: let it finish. `row.quiet_at` is to be up to date. A leader that learns
    ends none that nobody needs to end."""
    if any(shard.released for shard in row.shards):
        return DrainEnd.NODE_LOST
    for shard in row.shards:
        report = report_of(snapshot, shard)
        if report is not None and report.state is ShardState.EXITED:
            return DrainEnd.SHARD_EXITED
    if row.revocable and is_learning(snapshot, now):
        return None
    if is_drained(snapshot, row):
        return DrainEnd.DRAINED
    # Routers tell a new leader everything anew: its patience with them begins with its term.
    asked_s = now - max(row.since, snapshot.term_started)
    if row.revocable:
        return DrainEnd.TAKEN_BACK if asked_s >= _patience_s(snapshot, row) else None
    if asked_s >= snapshot.intervals.router_stale_s and _quiet_twice(snapshot, row):
        return DrainEnd.QUIET
    return DrainEnd.DEADLINE if now - row.since >= drain_timeout_s(snapshot, row) else None


def _patience_s(snapshot: Snapshot, row: ReplicaRow) -> float:
    """An idle replica has nothing to finish, so its routers answer at once or not at all; while they are
    asked, nobody can use it."""
    return min(drain_timeout_s(snapshot, row), 2 * snapshot.intervals.router_stale_s)


def _quiet_twice(snapshot: Snapshot, row: ReplicaRow) -> bool:
    """A gauge is a sample: one zero may fall between two requests of a router that was not told yet."""
    if row.quiet_at is None:
        return False
    return min(_heard_at(snapshot, row)) - row.quiet_at >= READINGS_APART_S


def _engines_quiet(snapshot: Snapshot, row: ReplicaRow) -> bool:
    """No engine of it says that something runs, and each was heard since the drain began: a gauge read
    before says nothing of it."""
    for shard in row.shards:
        heard = snapshot.heard.get(shard.node_id)
        report = report_of(snapshot, shard)
        if heard is None or report is None or heard.heard_at <= row.since:
            return False
        if report.running or report.running_unknown:
            return False
    return True


def _has_gauge(snapshot: Snapshot, row: ReplicaRow) -> bool:
    """Of a group only the shard that answers clients has one."""
    return any(
        report.running is not None
        for shard in row.shards
        if (report := report_of(snapshot, shard)) is not None
    )


def _heard_at(snapshot: Snapshot, row: ReplicaRow) -> list[float]:
    return [snapshot.heard[shard.node_id].heard_at for shard in row.shards]
