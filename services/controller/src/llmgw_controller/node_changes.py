"""Setting a node aside, and taking it back."""

import logging
from dataclasses import replace

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.hearing import NodeState, node_state
from llmgw_controller.core.plan import PutEvent, PutNode, Severity
from llmgw_controller.core.state import NodeRow, Schedulability, Stored
from llmgw_controller.model_changes import MEMORY_WARNING
from llmgw_controller.reign import Reign
from llmgw_kit.errors import InvalidRequest, NotFound
from llmgw_kit.ids import NodeId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: It stands in one line of the events.
REASON_MAX = 200


async def cordon_node(reign: Reign, name: str, reason: str | None) -> pb.NodeChange:
    """Place nothing new there; what runs stays. Raises NotFound, and InvalidRequest for a reason that is no
    line of text."""
    if reason is not None and not (reason.isprintable() and len(reason) <= REASON_MAX):
        raise InvalidRequest(
            f"the reason is no single line of at most {REASON_MAX} characters ({len(reason)} given)"
        )
    async with reign.ledger.writing() as stored:
        node = _node(stored, name)
        answer = _answer(reign, stored, node)
        stay = "stays" if len(answer.replica_ids) == 1 else "stay"
        runs = f"{', '.join(answer.replica_ids)} {stay}" if answer.replica_ids else "nothing runs there"
        if node.schedulability is not Schedulability.SCHEDULABLE:
            answer.outcome = "unchanged"
            answer.text = f"{name} is {node.schedulability.value} already"
        else:
            answer.outcome = "cordoned"
            answer.text = f"{name} is cordoned: nothing new is placed there; {runs}"
            why = f"by operator: {reason}" if reason else "by operator"
            await _commit(reign, replace(node, schedulability=Schedulability.CORDONED), "cordoned", why)
    reign.hints()
    return answer


async def uncordon_node(reign: Reign, name: str) -> pb.NodeChange:
    """Place there again. Raises NotFound."""
    async with reign.ledger.writing() as stored:
        node = _node(stored, name)
        answer = _answer(reign, stored, node)
        if node.schedulability is Schedulability.SCHEDULABLE:
            answer.outcome, answer.text = "unchanged", f"{name} is not cordoned"
        else:
            state = node_state(reign.snapshot(stored), node, reign.tenure.now())
            later = "" if state is NodeState.READY else f" once it is ready; it is {state.value} now"
            answer.outcome, answer.text = "uncordoned", f"{name} takes work again{later}"
            await _commit(
                reign, replace(node, schedulability=Schedulability.SCHEDULABLE), "uncordoned", "by operator"
            )
    reign.hints()
    return answer


def _node(stored: Stored, name: str) -> NodeRow:
    node = stored.nodes.get(NodeId(name))
    if node is None:
        raise NotFound(
            f"no node {name}{did_you_mean(name, stored.nodes)}",
            code="node_not_found",
            next_steps=["try: llmgwctl nodes"],
        )
    return node


def _answer(reign: Reign, stored: Stored, node: NodeRow) -> pb.NodeChange:
    held = sorted(
        row.replica_id
        for row in stored.replicas.values()
        if any(shard.node_id == node.node_id and not shard.released for shard in row.shards)
    )
    warnings = [MEMORY_WARNING] if reign.world.store.kind == "memory" else []
    return pb.NodeChange(node_id=node.node_id, replica_ids=held, warnings=warnings)


async def _commit(reign: Reign, node: NodeRow, kind: str, why: str) -> None:
    event = PutEvent(reign.tenure.now(), kind, node.node_id, why, Severity.INFO)
    await reign.ledger.commit([PutNode(node), event])
    log.info("node %s is %s %s", node.node_id, kind, why)
    if reign.world.store.kind == "memory":
        log.warning("node %s: %s", node.node_id, MEMORY_WARNING)
