"""Ordered: an operator lets idle replicas go so that one model, and nobody else, gets their room.

An eviction as the controller's own, by hand: put aside first, stopped together, handed over in one
transaction. The rules of who stays give way to the operator's word; what is used, or may be, is not touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_controller.core.activity import Busy, Idle, Unknown, Verdicts
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.deployments import effective_pinned
from llmgw_controller.core.earmarks import owed, places_after
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.proposals import Proposal, proposal_of
from llmgw_controller.core.regret import prices
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.victims import Choice
from llmgw_controller.core.waiting import waiting
from llmgw_controller.core.words import lasting


@dataclass(frozen=True)
class NotOrdered:
    """Why it is refused, as a stable word and for people; and what to do instead."""

    code: str
    text: str
    step: str


def order(
    snapshot: Snapshot, verdicts: Verdicts, rows: Sequence[ReplicaRow], model: Model, now: float
) -> Proposal | NotOrdered:
    """For the replica of the model that is first in line. All of `rows` or none."""
    if is_learning(snapshot, now):
        left = lasting(snapshot.term_started + snapshot.intervals.learning_window_s - now)
        return NotOrdered("learning", "the leader is new and hears the nodes first", f"try again in {left}")
    wait = next((one for one in waiting(snapshot, now) if one.model.name == model.name), None)
    if wait is None:
        text = f"no replica of {model.name} waits for room"
        step = f"try: llmgwctl why {model.name}"
        if model.activate_on_demand:
            step += f", or start it: llmgwctl model activate {model.name}"
        return NotOrdered("nobody_waits", text, step)
    for row in rows:
        refused = _stays(snapshot, verdicts, row, model)
        if refused is not None:
            return refused
    owing = owed(snapshot.stored)
    if wait.row.replica_id in owing:
        text = f"room is made for {wait.row.replica_id} already"
        return NotOrdered("room_is_made", text, "see: llmgwctl evictions")
    leaving = tuple(sorted(row.replica_id for row in rows))
    if wait.row.replica_id not in places_after(
        snapshot, {**owing, wait.row.replica_id: frozenset(leaving)}, now
    ):
        text = f"{wait.row.replica_id} would find no place with {', '.join(leaving)} gone"
        return NotOrdered("makes_no_room", text, f"try: llmgwctl why {model.name}")
    choice = Choice(wait.row.profile, leaving)
    return proposal_of(snapshot, verdicts, wait.row, choice, prices(snapshot, now), now)


def _stays(snapshot: Snapshot, verdicts: Verdicts, row: ReplicaRow, model: Model) -> NotOrdered | None:
    """What only an idle replica of another model may be let go by."""
    name = row.replica_id
    theirs = snapshot.catalog.models.get(row.model)
    if row.model == model.name:
        return NotOrdered("same_model", f"{name} is one of {model.name} itself", "name others")
    if row.wish is not Wish.SERVE or row.phase is not Phase.READY or theirs is None:
        state = "is leaving already" if row.wish is not Wish.SERVE else f"is {row.phase.value}"
        return NotOrdered("not_ready", f"{name} {state}", "name only replicas that are ready and idle")
    if effective_pinned(snapshot.stored, theirs):
        return NotOrdered("pinned", f"{name} is pinned", f"to let it go: llmgwctl model unpin {row.model}")
    anyway = f"to let it finish and stop all the same, for whoever is first: llmgwctl replica drain {name}"
    match verdicts.by_replica.get(name):
        case Idle():
            return None
        case Unknown(reason):
            return NotOrdered("unknown", f"idleness of {name} is unknown: {reason.replace('_', ' ')}", anyway)
        case Busy() | None:
            return NotOrdered("in_use", f"{name} is in use", anyway)
