"""Commands said again: the agent had time to show what it was told, and shows nothing of it.

The complete Desired is the real repair; this only makes it sooner. It is the one part of a plan that a
second pass over the same snapshot gives again, and it never changes a row.
"""

from llmgw_controller.core.draft import Draft
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.plan import Drain, FetchWeights, Start, Stop
from llmgw_controller.core.rows import Phase, ReplicaRow

#: Longer than a command and the report that follows it take on a busy node.
REPEAT_AFTER_S = 5.0

_ENDING = frozenset({ShardState.STOPPING, ShardState.EXITED})


def repeat(draft: Draft) -> None:
    for row in draft.replicas():
        if draft.now - row.since < REPEAT_AFTER_S:
            continue
        if row.phase in (Phase.RESERVED, Phase.STARTING):
            _start(draft, row)
        elif row.phase is Phase.DRAINING and not row.revocable:
            _drain(draft, row)
        elif row.phase in (Phase.STOPPING, Phase.BACKOFF, Phase.FAILED):
            _stop(draft, row)


def _start(draft: Draft, row: ReplicaRow) -> None:
    model = draft.snapshot.catalog.models.get(row.model)
    for shard in row.shards:
        report = report_of(draft.snapshot, shard)
        if report is None:
            draft.command(Start(shard.node_id, row.replica_id, shard.shard_id))
        stuck = report is None or (report.state is ShardState.FETCHING and report.progress is None)
        if stuck and model is not None and model.weights is not None:
            draft.command(FetchWeights(model.name))


def _drain(draft: Draft, row: ReplicaRow) -> None:
    for shard in row.shards:
        report = report_of(draft.snapshot, shard)
        if report is not None and report.state is ShardState.SERVING:
            draft.command(Drain(shard.node_id, shard.shard_id))


def _stop(draft: Draft, row: ReplicaRow) -> None:
    for shard in row.shards:
        report = report_of(draft.snapshot, shard)
        if not shard.released and (report is None or report.state not in _ENDING):
            draft.command(Stop(shard.node_id, shard.shard_id, row.reason or row.phase.value))
