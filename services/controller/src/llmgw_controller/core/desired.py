"""The complete Desired of one node, from rows alone: what an agent must run, finish or end.

Level-triggered: whatever command was lost, this repairs. A shard leaves it once its exit was seen.
"""

from llmgw_controller.core.catalog import Catalog
from llmgw_controller.core.replica import RUNNING
from llmgw_controller.core.rollout import is_current
from llmgw_controller.core.rows import Phase, ReplicaRow, ShardRow, Stored, Wish
from llmgw_kit.ids import NodeId

DesiredShard = tuple[ReplicaRow, ShardRow, Wish]


def desired_for(node_id: NodeId, stored: Stored, catalog: Catalog) -> tuple[DesiredShard, ...]:
    """By shard id; the wish is the shard's: SERVE to run, DRAIN, STOP."""
    found = [
        (row, shard, shard_wish(row, catalog))
        for row in stored.by_node.get(node_id, ())
        for shard in row.shards
        if shard.node_id == node_id and not shard.released
    ]
    return tuple(sorted(found, key=lambda one: one[1].shard_id))


def shard_wish(row: ReplicaRow, catalog: Catalog) -> Wish:
    if row.phase not in RUNNING:
        return Wish.STOP
    if row.phase is Phase.DRAINING and not row.revocable:
        return Wish.DRAIN
    model = catalog.models.get(row.model)
    if row.phase is Phase.RESERVED and not (model and is_current(row, model)):
        # Not taken up yet, and what it would be started from is no longer what its row names.
        return Wish.STOP
    return Wish.SERVE
