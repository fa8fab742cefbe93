"""Exits: when a shard counts as gone, and how its devices and ports come free.

An exit is seen when the agent says EXITED, or when it does not list the shard at all although it had
applied a Desired that names it: then no start of it is still on its way. Time alone says nothing, for an
agent may beat on while what it was told lies unread; of agents too old to say what they have applied it is
all there is.
"""

from llmgw_controller.core.draft import Draft
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.plan import Release
from llmgw_controller.core.rows import Phase, PortQuarantine, ReplicaRow, ShardRow
from llmgw_controller.core.state import Snapshot

#: An agent of an earlier release that spoke so long after a phase began and does not list the shard is taken
#: to have no such shard. Longer than a command needs to be taken up.
SETTLE_S = 10.0

VANISHED = Exit(None, None, "vanished", "its agent is connected and no longer knows the shard")


def exit_of(snapshot: Snapshot, row: ReplicaRow, shard: ShardRow) -> Exit | None:
    """How the shard ended; None while it may still run."""
    report = report_of(snapshot, shard)
    if report is not None:
        if report.state is not ShardState.EXITED:
            return None
        return report.exit or Exit(None, None, "unknown", "the agent gave no reason")
    heard = snapshot.heard.get(shard.node_id)
    if heard is not None and heard.answered is not None:
        return VANISHED if shard.shard_id in heard.answered else None
    if heard is None or not heard.connected or row.phase is Phase.RESERVED:
        # RESERVED: its agent has not said yet that it took the shard up.
        return None
    return VANISHED if heard.heard_at - row.since >= SETTLE_S else None


def release_exited(draft: Draft, row: ReplicaRow) -> ReplicaRow:
    """Free what ended. The ports rest for a while: late packets of the old engine's clients must not
    meet a new one, and a port that was found taken is not tried again at once."""
    gone = [
        shard
        for shard in row.shards
        if not shard.released and exit_of(draft.snapshot, row, shard) is not None
    ]
    if not gone:
        return row
    until = draft.now + draft.snapshot.intervals.port_quarantine_s
    quarantine = tuple(
        PortQuarantine(shard.node_id, port, until) for shard in gone for _, port in shard.ports
    )
    draft.change(Release(row.replica_id, tuple(shard.shard_id for shard in gone), quarantine))
    return draft.row(row.replica_id)
