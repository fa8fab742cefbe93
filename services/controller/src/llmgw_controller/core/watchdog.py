"""Watchdog: a group that has requests and lets no token out is taken down, as after a crash.

What its agent measured is all that is judged: how long the engine has had requests while its own counters of
work stood still. Never judged are an engine without such counters, a reading that is missing, a node that is
not heard now, a replica that is not READY, and anything while a new leader still learns.
"""

from dataclasses import dataclass
from textwrap import shorten

from llmgw_controller.core.heard import Exit, ShardReport
from llmgw_controller.core.hearing import is_learning, is_silent, report_of
from llmgw_controller.core.rows import Phase, ReplicaRow, ShardRow
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted, lasting

#: A profile without a limit of its own: no engine needs so long for a token.
STALL_TOLD_S = 60.0
#: Of what an engine says to a probe, in characters.
PROBE_TOLD_MOST = 160


@dataclass(frozen=True)
class Stall:
    """A shard that gets nowhere, and what its profile says of that."""

    shard: ShardRow
    report: ShardReport
    seconds: float
    #: None: it is shown and left alone.
    limit_s: float | None

    @property
    def told(self) -> bool:
        """Long enough to be told of: a long prompt takes a while too."""
        return self.seconds >= (STALL_TOLD_S if self.limit_s is None else self.limit_s / 2)

    @property
    def text(self) -> str:
        running = (
            "" if self.report.running is None else f" with {counted(self.report.running, 'request')} running"
        )
        return f"no token for {lasting(self.seconds)}{running}, on {self.shard.node_id}"


def stall_of(snapshot: Snapshot, row: ReplicaRow, now: float) -> Stall | None:
    """The shard that has stood still the longest; None: none does, or it cannot be told."""
    if row.phase is not Phase.READY or is_learning(snapshot, now):
        return None
    found = [stall for shard in row.shards if (stall := _stall(snapshot, row, shard, now)) is not None]
    return max(found, key=lambda stall: (stall.seconds, stall.shard.shard_id), default=None)


def _stall(snapshot: Snapshot, row: ReplicaRow, shard: ShardRow, now: float) -> Stall | None:
    report, heard = report_of(snapshot, shard), snapshot.heard.get(shard.node_id)
    if report is None or not report.stalled_s or report.group_epoch != row.group_epoch:
        return None
    if heard is None or not heard.connected or is_silent(snapshot, shard.node_id, now):
        return None
    model = snapshot.catalog.models.get(row.model)
    profile = model.profile(row.profile) if model else None
    return Stall(shard, report, report.stalled_s, profile.stall_timeout_s if profile else None)


def ailing(snapshot: Snapshot, row: ReplicaRow, now: float) -> str | None:
    """What keeps its engines from answering although they run, in words; None: nothing that is known."""
    stall = stall_of(snapshot, row, now)
    if stall is not None and stall.told:
        return stall.text
    for shard in row.shards:
        report = report_of(snapshot, shard)
        if report is not None and report.probe_error is not None:
            said = shorten(report.probe_error, PROBE_TOLD_MOST, placeholder="…")
            return f"does not answer its probe on {shard.node_id}: {said}"
    return None


def hang(snapshot: Snapshot, row: ReplicaRow, now: float) -> Exit | None:
    """Why the group is to be taken down; None: it is not."""
    stall = stall_of(snapshot, row, now)
    if stall is None or stall.limit_s is None or stall.seconds < stall.limit_s:
        return None
    return Exit(None, None, "stalled", f"{stall.text}; its profile allows {lasting(stall.limit_s)}")
