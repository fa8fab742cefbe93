"""One difference between what two witnesses say; told by `llmgwctl doctor`."""

from dataclasses import dataclass

from llmgw_controller.core.heard import NodeHeard
from llmgw_controller.core.hearing import NodeState, node_state
from llmgw_controller.core.plan import Severity
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import NodeId


@dataclass(frozen=True)
class Witness:
    #: "database", "agent NODE", "router ID", "engine SHARD", "redis", "controller NAME".
    who: str
    says: str


@dataclass(frozen=True)
class Disagreement:
    severity: Severity
    kind: str
    subject: str
    witnesses: tuple[Witness, ...]
    #: Term clock; None: nobody knows since when.
    since: float | None
    #: Which side will win, and by when; or what to type.
    outcome: str


def listening(snapshot: Snapshot, node_id: NodeId, now: float) -> NodeHeard | None:
    """What a node in reach says; None: it is silent, which is no disagreement."""
    node = snapshot.stored.nodes.get(node_id)
    heard = snapshot.heard.get(node_id)
    if node is None or heard is None or not heard.connected:
        return None
    return heard if node_state(snapshot, node, now) is NodeState.READY else None
