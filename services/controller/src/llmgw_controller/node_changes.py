"""Setting a node aside, emptying it, taking it back, and giving up one that is gone."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.changes import commit, memory_warnings
from llmgw_controller.core.hearing import NodeState, last_seen, node_state
from llmgw_controller.core.moving import Moving, steps
from llmgw_controller.core.plan import Change, JudgeNode, PutEvent, PutNode, Severity
from llmgw_controller.core.rows import NodeRow, Schedulability, Stored
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted, lasting
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound
from llmgw_kit.ids import NodeId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: After how many go so.
_ONE = {
    Moving.MOVES: "moves",
    Moving.STOPS_FIRST: "stops first",
    Moving.STAYS: "stays until room is found",
    Moving.LEAVES: "leaves",
}
_MANY = {
    Moving.MOVES: "move",
    Moving.STOPS_FIRST: "stop first",
    Moving.STAYS: "stay until room is found",
    Moving.LEAVES: "leave",
}

#: It stands in one line of the events.
REASON_MAX = 200


async def cordon_node(reign: Reign, name: str, reason: str | None, *, dry_run: bool = False) -> pb.NodeChange:
    """Place nothing new there; what runs stays. Raises NotFound, and InvalidRequest for a reason that is no
    line of text."""
    _check(reason)
    async with reign.ledger.writing() as stored:
        node = _node(stored, name)
        answer = _answer(reign, stored, node)
        stay = "stays" if len(answer.replica_ids) == 1 else "stay"
        runs = f"{', '.join(answer.replica_ids)} {stay}" if answer.replica_ids else "nothing runs there"
        if node.schedulability is Schedulability.CORDONED and reason not in (None, node.reason):
            answer.outcome, answer.text = "cordoned", f"{name} is cordoned already; the reason is new"
        elif node.schedulability is not Schedulability.SCHEDULABLE:
            answer.outcome, answer.text = "unchanged", f"{name} is {node.schedulability.value} already"
            return answer
        else:
            answer.outcome = "cordoned"
            answer.text = f"{name} is cordoned: nothing new is placed there; {runs}"
        if not dry_run:
            cordoned = replace(node, schedulability=Schedulability.CORDONED, reason=reason)
            await commit(reign, "node", name, "cordoned", _by(reason), PutNode(cordoned))
    reign.hints()
    return answer


async def uncordon_node(reign: Reign, name: str, *, dry_run: bool = False) -> pb.NodeChange:
    """Place there again, also after a drain. Raises NotFound."""
    (change,) = await uncordon_nodes(reign, [name], dry_run=dry_run)
    return change


async def uncordon_nodes(reign: Reign, names: Sequence[str], *, dry_run: bool) -> list[pb.NodeChange]:
    """All of them in one commit; one that is not there refuses them all. Raises NotFound."""
    async with reign.ledger.writing() as stored:
        nodes = [_node(stored, name) for name in dict.fromkeys(names)]
        told = [_uncordoned(reign, stored, node) for node in nodes]
        changes: list[Change] = []
        for node, answer in zip(nodes, told, strict=True):
            if answer.outcome == "unchanged":
                continue
            open_again = replace(node, schedulability=Schedulability.SCHEDULABLE, reason=None)
            event = PutEvent(reign.tenure.now(), "uncordoned", node.node_id, "by operator", Severity.INFO)
            changes += [PutNode(open_again), event]
        if changes and not dry_run:
            await reign.ledger.commit(changes)
            for answer in told:
                log.info("node %s: %s", answer.node_id, answer.text)
    reign.hints()
    return told


def _uncordoned(reign: Reign, stored: Stored, node: NodeRow) -> pb.NodeChange:
    answer = _answer(reign, stored, node)
    if node.schedulability is Schedulability.SCHEDULABLE:
        answer.outcome, answer.text = "unchanged", f"{node.node_id} is not cordoned"
        return answer
    state = node_state(reign.snapshot(stored), node, reign.tenure.now())
    later = "" if state is NodeState.READY else f" once it is ready; it is {state.value} now"
    stays = ""
    if node.schedulability is Schedulability.DRAINING and answer.replica_ids:
        stays = f"; what has not left stays: {', '.join(answer.replica_ids)}"
    answer.outcome, answer.text = "uncordoned", f"{node.node_id} takes work again{later}{stays}"
    return answer


async def drain_node(reign: Reign, name: str, reason: str | None, *, dry_run: bool) -> pb.DrainNodeResponse:
    """Place nothing there and move what runs: each replica's successor first, where there is room. Holds
    over restarts, until `uncordon`. Raises NotFound and InvalidRequest."""
    _check(reason)
    async with reign.ledger.writing() as stored:
        node = _node(stored, name)
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        # In a thread, as a pass decides: renewals must not wait for a large fleet.
        told = await asyncio.to_thread(_steps, snapshot, node, now)
        answer = pb.DrainNodeResponse(change=_answer(reign, stored, node), steps=told)
        change = answer.change
        if node.schedulability is Schedulability.DRAINING and reason in (None, node.reason):
            left = f"still to go: {counted(len(answer.steps), 'replica')}" if answer.steps else "it is empty"
            change.outcome, change.text = "unchanged", f"{name} is draining already; {left}"
            return answer
        change.outcome = "draining"
        change.text = f"{name} is drained: nothing new is placed there; " + _goes(answer)
        change.text += f"; to end it: llmgwctl node uncordon {name}"
        if not dry_run:
            draining = replace(
                node, schedulability=Schedulability.DRAINING, reason=reason if reason else node.reason
            )
            await commit(reign, "node", name, "node_draining", _by(draining.reason), PutNode(draining))
    reign.hints()
    return answer


async def confirm_lost(reign: Reign, name: str, *, dry_run: bool) -> pb.NodeChange:
    """An operator knows that a silent node is gone: LOST now, whatever the timer and the brake say.

    Raises NotFound, and Conflict for a node that is heard or that a new leader still waits for."""
    async with reign.ledger.writing() as stored:
        node = _node(stored, name)
        snapshot, now = reign.snapshot(stored), reign.tenure.now()
        answer = _answer(reign, stored, node)
        state = node_state(snapshot, node, now)
        if state is NodeState.LOST:
            answer.outcome, answer.text = "unchanged", f"{name} is lost already"
            return answer
        _silent(snapshot, node, state, now)
        silent = lasting(now - last_seen(snapshot, node.node_id))
        goes = "its GPUs are given up"
        if answer.replica_ids:
            does = "goes" if len(answer.replica_ids) == 1 else "go"
            goes = f"{', '.join(answer.replica_ids)} {does} elsewhere, where there is room"
        answer.outcome = "lost"
        answer.text = (
            f"{name}, silent for {silent}, is given up: {goes}. If it comes back, it takes no work until its "
            "old engines were seen to exit"
        )
        if not dry_run:
            why = f"confirmed by operator after {silent} of silence: its replicas go elsewhere"
            await commit(reign, "node", name, "node_lost", why, JudgeNode(node.node_id, now), trouble=True)
    reign.hints()
    return answer


def _silent(snapshot: Snapshot, node: NodeRow, state: NodeState, now: float) -> None:
    name = node.node_id
    if state is NodeState.ENROLLED:
        left_s = last_seen(snapshot, name) + snapshot.intervals.unreachable_after_s - now
        raise Conflict(
            f"the leader is new and waits for {name}: it may still be heard",
            code="node_awaited",
            next_steps=[f"try again in {lasting(left_s + 1)}"],
        )
    if state is not NodeState.UNREACHABLE:
        heard = lasting(now - snapshot.heard[name].heard_at)
        raise Conflict(
            f"{name} was heard {heard} ago: it is not lost, and its engines run",
            code="node_heard",
            next_steps=[f"to empty it: llmgwctl node drain {name}"],
        )


def _steps(snapshot: Snapshot, node: NodeRow, now: float) -> list[pb.NodeDrainStep]:
    return [
        pb.NodeDrainStep(replica_id=step.replica_id, outcome=step.moving.value, text=step.text)
        for step in steps(snapshot, node, now)
    ]


def _goes(answer: pb.DrainNodeResponse) -> str:
    """How many go which way; the steps name them."""
    if not answer.steps:
        return "nothing runs there"
    counts = Counter(Moving(step.outcome) for step in answer.steps)
    told = {way: _ONE[way] if counts[way] == 1 else _MANY[way] for way in Moving if counts[way]}
    all_of_them = counted(len(answer.steps), "replica")
    if len(told) == 1:
        return f"{all_of_them} {next(iter(told.values()))}"
    return f"{all_of_them}: " + ", ".join(f"{counts[way]} {text}" for way, text in told.items())


def _check(reason: str | None) -> None:
    if reason is not None and not (reason.isprintable() and len(reason) <= REASON_MAX):
        raise InvalidRequest(
            f"the reason is no single line of at most {REASON_MAX} characters ({len(reason)} given)"
        )


def _by(reason: str | None) -> str:
    return f"by operator: {reason}" if reason else "by operator"


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
    return pb.NodeChange(node_id=node.node_id, replica_ids=held, warnings=memory_warnings(reign))
