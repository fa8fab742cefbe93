"""Eviction to make room: the first step, from a proposal to receipts and drains.

An eviction is a set of revocable drains for one waiting replica. The victims' routers put them aside
first; their engines are told nothing. Only when every router has acknowledged and newer reports still say
idle do all of them stop, together. Until then it is cancelled without a trace; after that the victims keep
their claims until every exit is seen, and then the room goes to whoever waits in one transaction.
Decisions: ADR 0017. Who waits: `waiting.py`; who may leave: `proposals.py`; how an open one goes on:
`making_room.py`.
"""

from dataclasses import replace

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.evidence import evidence
from llmgw_controller.core.plan import PutActivation, PutEviction
from llmgw_controller.core.proposals import HOPELESS_MOST, Proposal, profile_of, propose
from llmgw_controller.core.regret import Prices, prices
from llmgw_controller.core.roster import let_go
from llmgw_controller.core.rows import (
    ORDERED,
    ActivationRow,
    Cause,
    EvictionRow,
    EvictionState,
    ReplicaRow,
)
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.waiting import is_missed, rotated, waiting

#: For so long an operator's order counts as an ask: as long as what he activates.
ORDER_KEEPS_S = 3600.0

#: Evictions begun at one moment; further ones begin in the passes that follow at once.
BEGUN_MOST = 2


def begin(draft: Draft, found: Rooms | None) -> None:
    """Begin one eviction, if one is due. `found`: the rooms as placing has left them; None: nobody waits. One
    at a time: the next is decided on what this one leaves."""
    snapshot, now = draft.snapshot, draft.now
    if found is None or snapshot.intervals.eviction is not EvictionPolicy.ON:
        return
    opened = snapshot.stored.leaving_for.values()
    if len({one.beneficiary_replica_id for one in opened if one.decided_at == now}) >= BEGUN_MOST:
        return
    missed = [one for one in waiting(snapshot, now) if is_missed(snapshot, one.row, one.model)]
    waits = rotated(missed, now, HOPELESS_MOST)
    for proposal in propose(snapshot, draft.verdicts, found, waits, now):
        _begin(draft, proposal)
        _keep_asked(draft, proposal.beneficiary)
        return


def begin_ordered(draft: Draft, proposal: Proposal) -> None:
    """As an operator said, whatever the policy. Who asked for the beneficiary may be gone; the operator has
    asked anew, and for as long as an activation of his stays open."""
    _begin(draft, proposal, ORDERED)
    waits = proposal.beneficiary
    if waits.cause is Cause.ACTIVATION:
        known = draft.stored.activations.get(waits.model)
        row = known or ActivationRow(waits.model, draft.now, draft.now)
        draft.change(PutActivation(replace(row, kept_until=draft.now + ORDER_KEEPS_S)))


def _begin(draft: Draft, proposal: Proposal, *said: str) -> None:
    costs = prices(draft.snapshot, draft.now)
    for victim in proposal.victims:
        receipt = _receipt(draft, proposal, victim, costs)
        draft.change(PutEviction(replace(receipt, evidence=(*said, *receipt.evidence))))
        let_go(draft, victim, because=f"evicted for {proposal.beneficiary.replica_id}", revocable=True)


def _keep_asked(draft: Draft, beneficiary: ReplicaRow) -> None:
    """Whoever was refused just before was told to come again, and will find that room is made: until then the
    demand counts as any other that nobody has repeated yet."""
    if beneficiary.cause is Cause.ACTIVATION and beneficiary.model not in draft.stored.activations:
        draft.change(PutActivation(ActivationRow(beneficiary.model, draft.now, draft.now)))


def _receipt(draft: Draft, proposal: Proposal, victim: ReplicaRow, costs: Prices) -> EvictionRow:
    verdict = draft.verdicts.by_replica[victim.replica_id]
    assert isinstance(verdict, Idle), f"{victim.replica_id}: evicted though {verdict}"
    return EvictionRow(
        eviction_id=_new_id(draft.snapshot, victim, draft.now),
        victim_replica_id=victim.replica_id,
        victim_model=victim.model,
        beneficiary_model=proposal.beneficiary.model,
        beneficiary_replica_id=proposal.beneficiary.replica_id,
        decided_at=draft.now,
        state=EvictionState.DRAINING,
        text=proposal.text,
        evidence=evidence(draft.snapshot, victim, verdict),
        gpus=victim.gpus_held,
        idle_s=verdict.for_s,
        predicted_free_s=proposal.frees_in_s,
        reload_s=costs.reload_s(
            draft.snapshot.catalog.models[victim.model], profile_of(draft.snapshot, victim)
        ),
    )


def _new_id(snapshot: Snapshot, victim: ReplicaRow, now: float) -> str:
    """An engine whose eviction was cancelled may be chosen again; its earlier receipts stay. Those older than
    a day are not in the snapshot, so the second of the decision keeps them apart; within that, a number."""
    number, name = 1, f"{victim.endpoint_id}#{now:.0f}"
    while name in snapshot.stored.evictions:
        number += 1
        name = f"{victim.endpoint_id}#{now:.0f}.{number}"
    return name
