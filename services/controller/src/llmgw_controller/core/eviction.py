"""Eviction to make room: who waits, who may leave for it, and the receipt of each step.

An eviction is a set of revocable drains for one waiting replica. The victims' routers put them aside
first; their engines are told nothing. Only when every router has acknowledged and newer reports still say
idle do all of them stop, together. Until then it is cancelled without a trace; after that the victims keep
their claims until every exit is seen, and then the room goes to whoever waits in one transaction.
Decisions: ADR 0017. How an open one goes on: `making_room.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Rooms, rooms
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.earmarks import owed, places_after
from llmgw_controller.core.evidence import evidence
from llmgw_controller.core.failing import startable
from llmgw_controller.core.hearing import brake, is_learning
from llmgw_controller.core.placing import rank
from llmgw_controller.core.plan import PutEviction
from llmgw_controller.core.regret import Prices, prices
from llmgw_controller.core.roster import let_go
from llmgw_controller.core.state import (
    Cause,
    EvictionPolicy,
    EvictionRow,
    EvictionState,
    Phase,
    ReplicaRow,
    Snapshot,
    Wish,
)
from llmgw_controller.core.staying import Asker, Kept, Why, kept
from llmgw_controller.core.victims import Candidate, Choice, choose
from llmgw_controller.core.words import counted, lasting
from llmgw_kit.ids import ModelId, ReplicaId

HOUR_S = 3600.0

#: Evictions begun at one moment; further ones begin in the passes that follow at once.
BEGUN_MOST = 8

#: Models looked at in one pass: a fleet with hundreds that fit nowhere must not keep a pass from its end.
CONSIDERED_MOST = 24


@dataclass(frozen=True)
class Proposal:
    """What would make room for whom."""

    beneficiary: ReplicaRow
    victims: tuple[ReplicaRow, ...]
    text: str
    #: Until the room is free, as earlier ones took; None: none was measured.
    frees_in_s: float | None
    #: To bring all of them back, one after the other; None: one of them was never measured.
    reload_s: float | None


def begin(draft: Draft, found: Rooms | None) -> None:
    """Begin one eviction, if one is due. `found`: the rooms as placing has left them; None: nobody waits. One
    at a time: the next is decided on what this one leaves."""
    if found is None or draft.snapshot.intervals.eviction is not EvictionPolicy.ON:
        return
    begun = {
        one.beneficiary_replica_id for one in draft.stored.leaving_for.values() if one.decided_at == draft.now
    }
    if len(begun) >= BEGUN_MOST:
        return
    for proposal in _proposals(draft.snapshot, draft.verdicts, found, draft.now):
        _begin(draft, proposal)
        return


def proposals(snapshot: Snapshot, verdicts: Verdicts, now: float) -> tuple[Proposal, ...]:
    """What `suggest` shows: for each that waits, on the rooms as they are. Empty under the other policies:
    off means off, and on does it."""
    if snapshot.intervals.eviction is not EvictionPolicy.SUGGEST:
        return ()
    return tuple(_proposals(snapshot, verdicts, rooms(snapshot, now), now))


def waits_since(snapshot: Snapshot, row: ReplicaRow, model: Model) -> float | None:
    """Since when it waits for room that somebody wants it to have; None: nobody does, or it does not."""
    if row.wish is not Wish.SERVE or row.phase is not Phase.UNPLACEABLE:
        return None
    mine = [one for one in snapshot.stored.by_model.get(model.name, ()) if one.wish is Wish.SERVE]
    asked = (
        model.name in snapshot.stored.activations
        or bool(snapshot.held.get(model.name))
        or (row.cause is Cause.DEMAND and model.name in snapshot.watched.pressed_since)
    )
    if row.cause is not Cause.CONFIGURATION and not asked:
        return None
    if row.cause is Cause.CONFIGURATION and len(mine) > model.replicas:
        return None  # One too many that a rollout or a move has started: nobody misses it.
    return row.since


def overdue(snapshot: Snapshot, since: float, now: float) -> bool:
    return now - since >= snapshot.intervals.eviction_patience_s


def asker_of(snapshot: Snapshot, model: Model, since: float, now: float) -> Asker:
    """In whose name a replica that waits since `since` asks others to leave."""
    if not overdue(snapshot, since, now):
        return Asker(priority=model.priority)
    # Two reports of every router that tell of no use.
    return Asker(priority=model.priority, overdue_idle_s=2 * snapshot.intervals.router_stale_s)


def may_make_room(
    snapshot: Snapshot, verdicts: Verdicts, model: Model, since: float, now: float
) -> tuple[dict[ReplicaId, Candidate], dict[ReplicaId, Kept]]:
    """Of all that is idle: who may leave for `model`, and who not and why."""
    costs = prices(snapshot, now)
    asker = asker_of(snapshot, model, since, now)
    may: dict[ReplicaId, Candidate] = {}
    stay: dict[ReplicaId, Kept] = {}
    for replica_id, verdict in sorted(verdicts.by_replica.items()):
        row = snapshot.stored.replicas.get(replica_id)
        theirs = snapshot.catalog.models.get(row.model) if row is not None else None
        if row is None or theirs is None or not isinstance(verdict, Idle) or row.model == model.name:
            continue
        why = kept(snapshot, row, theirs, verdict, asker, costs, now) or _spent(
            snapshot, row.model, 1, now, late=asker.overdue_idle_s is not None
        )
        if why is not None:
            stay[replica_id] = why
        else:
            may[replica_id] = _candidate(row, theirs, verdict, costs)
    return may, stay


def _candidate(row: ReplicaRow, model: Model, idle: Idle, costs: Prices) -> Candidate:
    return Candidate(
        row.replica_id,
        costs.cost_s(model, model.profile(row.profile)),
        idle.for_s,
        frozenset(shard.node_id for shard in row.shards if not shard.released),
    )


def _proposals(snapshot: Snapshot, verdicts: Verdicts, found: Rooms, now: float) -> Iterable[Proposal]:
    """Best first; each on the same rooms, so only the first of them is sure to hold beside another."""
    if is_learning(snapshot, now) or brake(snapshot, now).on:
        return
    costs = prices(snapshot, now)
    hopeless: set[ModelId] = set()
    owing = owed(snapshot.stored)
    for since, row, model in _waiting(snapshot, now):
        if row.replica_id in owing or model.name in hopeless or len(hopeless) >= CONSIDERED_MOST:
            continue
        may, _ = may_make_room(snapshot, verdicts, model, since, now)
        profiles = startable(snapshot.stored, model, snapshot.intervals)
        choice = choose(replace(model, profiles=profiles), found, may) if may else None
        late = overdue(snapshot, since, now)
        if choice is None or _over_budget(snapshot, choice, now, late=late):
            hopeless.add(model.name)
            continue
        wanted = {**owing, row.replica_id: frozenset(choice.leaving)}
        if row.replica_id not in places_after(snapshot, wanted, now):
            hopeless.add(
                model.name
            )  # What it lacks beside devices, such as ports, their leaving does not give.
            continue
        yield _proposal(snapshot, verdicts, row, choice, costs, now)


def _waiting(snapshot: Snapshot, now: float) -> list[tuple[float, ReplicaRow, Model]]:
    """Who waits, in the order they are served: who has waited too long, then as they are placed; the demands
    of one model follow each other."""
    found = [
        (since, row, model)
        for row in snapshot.stored.sorted_replicas
        if row.phase is Phase.UNPLACEABLE
        if (model := snapshot.catalog.models.get(row.model)) is not None
        if (since := waits_since(snapshot, row, model)) is not None
    ]
    first: dict[ModelId, float] = {}
    for since, row, _ in found:
        first[row.model] = min(since, first.get(row.model, since))
    return sorted(
        found,
        key=lambda one: (
            not overdue(snapshot, first[one[1].model], now),
            rank(one[2]),
            first[one[1].model],
            one[1].model,
            one[0],
            one[1].replica_id,
        ),
    )


def _proposal(
    snapshot: Snapshot, verdicts: Verdicts, row: ReplicaRow, choice: Choice, costs: Prices, now: float
) -> Proposal:
    victims = tuple(snapshot.stored.replicas[name] for name in choice.leaving)
    reloads = [costs.reload_s(snapshot.catalog.models[one.model], _profile(snapshot, one)) for one in victims]
    known = [seconds for seconds in reloads if seconds is not None]
    told = []
    for one in victims:
        verdict = verdicts.by_replica[one.replica_id]
        assert isinstance(verdict, Idle)
        told.append(f"{one.replica_id} ({counted(_gpus(one), 'GPU')}, idle {lasting(verdict.for_s)})")
    leave = "leaves" if len(victims) == 1 else "leave"
    return Proposal(
        row,
        victims,
        f"{' and '.join(told)} {leave} for {row.replica_id}, which waits for {lasting(now - row.since)}",
        usual_free_s(snapshot),
        sum(known) if len(known) == len(reloads) else None,
    )


def usual_free_s(snapshot: Snapshot) -> float | None:
    """From the decision to the free room: median of those that were done; None: none was."""
    took = sorted(
        one.freed_at - one.decided_at
        for one in snapshot.stored.evictions.values()
        if one.state is EvictionState.DONE and one.freed_at is not None
    )
    return took[(len(took) - 1) // 2] if took else None


def _begin(draft: Draft, proposal: Proposal) -> None:
    snapshot = draft.snapshot
    costs = prices(snapshot, draft.now)
    for victim in proposal.victims:
        verdict = draft.verdicts.by_replica[victim.replica_id]
        assert isinstance(verdict, Idle), f"{victim.replica_id}: evicted though {verdict}"
        receipt = EvictionRow(
            eviction_id=_new_id(snapshot, victim),
            victim_replica_id=victim.replica_id,
            victim_model=victim.model,
            beneficiary_model=proposal.beneficiary.model,
            beneficiary_replica_id=proposal.beneficiary.replica_id,
            decided_at=draft.now,
            state=EvictionState.DRAINING,
            text=proposal.text,
            evidence=evidence(snapshot, victim, verdict),
            gpus=_gpus(victim),
            idle_s=verdict.for_s,
            predicted_free_s=proposal.frees_in_s,
            reload_s=costs.reload_s(snapshot.catalog.models[victim.model], _profile(snapshot, victim)),
        )
        draft.change(PutEviction(receipt))
        let_go(draft, victim, because=reason_for(proposal.beneficiary), revocable=True)


def reason_for(beneficiary: ReplicaRow) -> str:
    """Of a victim's row."""
    return f"evicted for {beneficiary.replica_id}"


def _new_id(snapshot: Snapshot, victim: ReplicaRow) -> str:
    """An engine whose eviction was cancelled may be chosen again; its earlier receipts stay."""
    number, name = 1, victim.endpoint_id
    while name in snapshot.stored.evictions:
        number += 1
        name = f"{victim.endpoint_id}#{number}"
    return name


def _over_budget(snapshot: Snapshot, choice: Choice, now: float, *, late: bool) -> bool:
    """The set as a whole, with what has left in the last hour."""
    if late:
        return False
    if _last_hour(snapshot, None, now) + len(choice.leaving) > snapshot.intervals.evictions_per_hour:
        return True
    each: dict[ModelId, int] = {}
    for name in choice.leaving:
        model = snapshot.stored.replicas[name].model
        each[model] = each.get(model, 0) + 1
    return any(_spent(snapshot, model, count, now, late=False) for model, count in each.items())


def _spent(snapshot: Snapshot, model: ModelId, count: int, now: float, *, late: bool) -> Kept | None:
    """So many more of one model in this hour are too many."""
    if late:
        return None
    most, gone = snapshot.intervals.evictions_per_model_per_hour, _last_hour(snapshot, model, now)
    if gone + count <= most:
        return None
    return Kept(Why.BUDGET, f"{counted(gone, 'replica')} of its model evicted in the last hour, of {most}")


def _last_hour(snapshot: Snapshot, model: ModelId | None, now: float) -> int:
    """Those under way and done; a cancelled one has cost nobody anything."""
    return sum(
        one.state in (EvictionState.DRAINING, EvictionState.DONE)
        and now - one.decided_at < HOUR_S
        and model in (None, one.victim_model)
        for one in snapshot.stored.evictions.values()
    )


def _profile(snapshot: Snapshot, row: ReplicaRow) -> Profile | None:
    model = snapshot.catalog.models.get(row.model)
    return model.profile(row.profile) if model is not None else None


def _gpus(row: ReplicaRow) -> int:
    return sum(len(shard.device_ids) for shard in row.shards if not shard.released)
