"""Nodes: who is LOST, what that frees, and how a lost node earns its way back.

Silence alone frees nothing. LOST gives a node's shards up: their devices and ports are released and a
tombstone stands for each, so that the node takes no work until their exits were seen.
"""

from llmgw_controller.core.draft import Draft
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.hearing import NodeState, brake, is_back, is_learning, last_seen, node_state
from llmgw_controller.core.plan import DropTombstone, JudgeNode, PutTombstone, Release, Severity
from llmgw_controller.core.rows import NodeRow, Tombstone
from llmgw_kit.ids import NodeId, ShardId


def judge(draft: Draft) -> None:
    """One look at every node. While the leader learns, or so many are silent together that the fault is
    likelier on our side, nobody is judged."""
    for node_id in sorted(draft.stored.nodes):
        node = draft.stored.nodes[node_id]
        if node.lost_at is None:
            _lose(draft, node)
        else:
            _bury(draft, node)
            _welcome(draft, draft.stored.nodes[node_id])


def _lose(draft: Draft, node: NodeRow) -> None:
    silent_s = draft.now - last_seen(draft.snapshot, node.node_id)
    if silent_s <= draft.snapshot.intervals.lost_after_s or is_learning(draft.snapshot, draft.now):
        return
    if brake(draft.snapshot, draft.now).on:
        return
    draft.change(JudgeNode(node.node_id, draft.now))
    draft.event(
        "node_lost", node.node_id, f"silent for {silent_s:.0f} s: its replicas go elsewhere", Severity.TROUBLE
    )


def _bury(draft: Draft, node: NodeRow) -> None:
    """Give up every shard of a node that is LOST; exits already seen need no tombstone."""
    if node_state(draft.snapshot, node, draft.now) is not NodeState.LOST:
        return
    for row in draft.stored.by_node.get(node.node_id, ()):
        mine = [s for s in row.shards if s.node_id == node.node_id and not s.released]
        if not mine:
            continue
        for shard in mine:
            if not _gone(draft, node.node_id, shard.shard_id):
                draft.change(PutTombstone(Tombstone(node.node_id, shard.shard_id, row.replica_id, draft.now)))
        # No quarantine: nothing is placed there before the old engines' exits are seen.
        draft.change(Release(row.replica_id, tuple(s.shard_id for s in mine), ()))


def _welcome(draft: Draft, node: NodeRow) -> None:
    """A node heard again: drop the tombstones of shards its agent no longer runs, then LOST itself.

    Its Hello lists all it holds, so a shard that is not in it does not run."""
    if not is_back(draft.snapshot, node):
        return
    stones = [stone for stone in draft.stored.tombstones if stone.node_id == node.node_id]
    for stone in stones:
        if _gone(draft, node.node_id, stone.shard_id):
            draft.change(DropTombstone(node.node_id, stone.shard_id))
    if not any(stone.node_id == node.node_id for stone in draft.stored.tombstones):
        draft.change(JudgeNode(node.node_id, None))
        draft.event("node_back", node.node_id, "heard again, old engines gone: takes work")


def _gone(draft: Draft, node_id: NodeId, shard_id: ShardId) -> bool:
    heard = draft.snapshot.heard.get(node_id)
    if heard is None:
        return False
    report = heard.shards.get(shard_id)
    if report is None:
        # Silence about a shard says something only since the node is back.
        node = draft.stored.nodes[node_id]
        return is_back(draft.snapshot, node)
    return report.state is ShardState.EXITED
