"""Who is heard: silence, the learning window of a new leader, and the brake on mass silence.

All of it is computed from the snapshot and the clock; only LOST, which gives claims away, is a row.
"""

from dataclasses import dataclass
from enum import Enum

from llmgw_controller.core.heard import ShardReport
from llmgw_controller.core.rows import NodeRow, Schedulability, ShardRow
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import NodeId


class NodeState(Enum):
    """ENROLLED: known, not heard in this term, and not long enough to call it silent."""

    ENROLLED = "enrolled"
    READY = "ready"
    UNREACHABLE = "unreachable"
    LOST = "lost"


def last_seen(snapshot: Snapshot, node_id: NodeId) -> float:
    """Term clock. A leader's patience with a node starts no earlier than its own term, for what the node
    said to the one before is not known here; nor before it was last awake itself, for what was said
    meanwhile may still lie unread. But a node that was silent when the leader fell asleep is no less so at
    its waking: only the sleep itself is not counted."""
    heard = snapshot.heard.get(node_id)
    if heard is not None:
        seen = heard.heard_at
    else:
        row = snapshot.stored.nodes.get(node_id)
        seen = max(row.last_heard if row else snapshot.term_started, snapshot.term_started)
    awake_since, asleep_since = snapshot.awake_since, snapshot.asleep_since
    if awake_since is None or seen >= awake_since:
        return seen
    if asleep_since is None or asleep_since - seen <= snapshot.intervals.unreachable_after_s:
        return awake_since
    return seen + (awake_since - asleep_since)


def is_silent(snapshot: Snapshot, node_id: NodeId, now: float) -> bool:
    return now - last_seen(snapshot, node_id) > snapshot.intervals.unreachable_after_s


def is_back(snapshot: Snapshot, node: NodeRow) -> bool:
    """Heard since it was judged LOST."""
    heard = snapshot.heard.get(node.node_id)
    return node.lost_at is not None and heard is not None and heard.heard_at > node.lost_at


def node_state(snapshot: Snapshot, node: NodeRow, now: float) -> NodeState:
    if node.lost_at is not None and not is_back(snapshot, node):
        return NodeState.LOST
    if is_silent(snapshot, node.node_id, now):
        return NodeState.UNREACHABLE
    return NodeState.READY if node.node_id in snapshot.heard else NodeState.ENROLLED


def is_learning(snapshot: Snapshot, now: float) -> bool:
    """A new leader judges nobody and replaces nothing until all known nodes were heard, or the window
    is over. Nodes already LOST are not waited for."""
    if now - snapshot.term_started >= snapshot.intervals.learning_window_s:
        return False
    return not _all_heard(snapshot)


def _all_heard(snapshot: Snapshot) -> bool:
    """Asked for each model and each replica, and the same for all of them."""
    heard, nodes = snapshot.heard, snapshot.stored.nodes
    before: tuple[object, object, bool] | None = snapshot.found.get("all heard")
    if before is None or before[0] is not heard or before[1] is not nodes:
        every = all(node.node_id in heard for node in nodes.values() if node.lost_at is None)
        before = snapshot.found["all heard"] = (heard, nodes, every)
    return before[2]


@dataclass(frozen=True)
class Brake:
    """Holds LOST back while so many nodes are silent together that the fault is likelier ours."""

    silent: int
    known: int
    on: bool


def brake(snapshot: Snapshot, now: float) -> Brake:
    """Nodes already LOST count on neither side."""
    known = [node for node in snapshot.stored.nodes.values() if node.lost_at is None]
    silent = sum(is_silent(snapshot, node.node_id, now) for node in known)
    return Brake(silent, len(known), on=silent > snapshot.intervals.brake_share * len(known))


def tombstones_of(snapshot: Snapshot, node_id: NodeId) -> int:
    return snapshot.stored.stones[node_id]


def takes_work(snapshot: Snapshot, node: NodeRow, now: float) -> bool:
    """Something may be placed there now: it is connected, wanted for work, and owes no exits."""
    heard = snapshot.heard.get(node.node_id)
    return (
        heard is not None
        and heard.connected
        and node.lost_at is None
        and node.schedulability is Schedulability.SCHEDULABLE
        and not is_silent(snapshot, node.node_id, now)
        and not tombstones_of(snapshot, node.node_id)
    )


def report_of(snapshot: Snapshot, shard: ShardRow) -> ShardReport | None:
    """What its agent said of it in this term; None: nothing, which is not EXITED."""
    heard = snapshot.heard.get(shard.node_id)
    return heard.shards.get(shard.shard_id) if heard else None
