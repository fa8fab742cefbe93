"""Idle holders: the idle replicas that hold what a waiting one needs, and what keeps each all the same.

By the evictor's own rules, whatever the policy: under `off` and `suggest` an operator asks the same question.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.deployments import effective_pinned
from llmgw_controller.core.explain import Explanation, Reason
from llmgw_controller.core.proposals import may_make_room, spent_lately
from llmgw_controller.core.question import Answer, Question
from llmgw_controller.core.regret import prices
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.staying import Kept
from llmgw_controller.core.waiting import Wait
from llmgw_kit.ids import ReplicaId


@dataclass(frozen=True)
class IdleHolder:
    """One of them."""

    replica_id: ReplicaId
    gpus: int
    idle_s: float
    never_asked: bool
    #: None: the rules let it go.
    kept: Kept | None


def idle_holders(
    asked: Question, answer: Answer, told: Iterable[Explanation], verdicts: Verdicts, now: float
) -> tuple[IdleHolder, ...]:
    """Of all profiles together: those that may go first, then who holds most."""
    snapshot = asked.snapshot
    names = {name for one in told for name in (*_near(one), *_on(snapshot, one))}
    wait = Wait(answer.row, asked.model, answer.row.since)
    _, stay = may_make_room(snapshot, verdicts, wait, prices(snapshot, now), spent_lately(snapshot, now), now)
    found = [
        IdleHolder(
            name, snapshot.stored.replicas[name].gpus_held, verdict.for_s, verdict.never_asked, stay.get(name)
        )
        for name in names
        if isinstance(verdict := verdicts.by_replica.get(name), Idle)
    ]
    return tuple(sorted(found, key=lambda one: (one.kept is not None, -one.gpus, one.replica_id)))


def _near(told: Explanation) -> Iterable[ReplicaId]:
    """Who would have to leave, were they let go."""
    return (name for miss in told.near_misses for name in miss.evict)


def _on(snapshot: Snapshot, told: Explanation) -> Iterable[ReplicaId]:
    """Pinned ones on nodes that have too little free: the planner counts on nobody's unpinning them."""
    for one in told.filters:
        if one.reason is not Reason.NOT_ENOUGH_FREE:
            continue
        for node_id in one.node_ids:
            for row in snapshot.stored.by_node.get(node_id, ()):
                model = snapshot.catalog.models.get(row.model)
                if row.holds_devices and model is not None and effective_pinned(snapshot.stored, model):
                    yield row.replica_id
