"""Proposals: for those that wait, whose leaving would make room, if anybody's may.

The pass begins the best of them, `suggest` shows the first few, and the rules are the same: the ceiling
first (would it fit with all of them gone), then the cheapest set, then the budget, then whether the planner
really finds a place once they have left.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Rooms, rooms
from llmgw_controller.core.earmarks import owed, places_after
from llmgw_controller.core.explain import Fit
from llmgw_controller.core.failing import is_resting, startable
from llmgw_controller.core.hearing import brake, is_learning
from llmgw_controller.core.loads import quantile
from llmgw_controller.core.overdue import exit_is_overdue
from llmgw_controller.core.placement import explain, memo_of
from llmgw_controller.core.regret import Prices, prices
from llmgw_controller.core.rows import EvictionState, ReplicaRow, Wish
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.staying import Asker, Kept, Why, kept
from llmgw_controller.core.victims import Candidate, Choice, choose
from llmgw_controller.core.waiting import Wait, waiting
from llmgw_controller.core.words import counted, lasting
from llmgw_kit.ids import ModelId, ReplicaId

HOUR_S = 3600.0

#: Models for which nothing was found before a pass stops looking: a fleet with hundreds that fit nowhere must
#: not keep a pass from its end. The next pass begins with others.
HOPELESS_MOST = 6

#: Proposals that a status shows, of those who are first: each costs a search of the fleet, and whoever agrees
#: with the first of them asks again for what is left.
SUGGESTED_MOST = 4


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


@dataclass(frozen=True)
class Spent:
    """What has left within the last hour, and how much may."""

    by_model: Counter[ModelId]
    most: int
    most_of_a_model: int

    @property
    def all_gone(self) -> bool:
        """The cluster's budget of this hour."""
        return self.by_model.total() >= self.most

    def leaves_room_for(self, more: Counter[ModelId]) -> bool:
        """The set as a whole is within both budgets."""
        return self.by_model.total() + more.total() <= self.most and all(
            self.by_model[model] + count <= self.most_of_a_model for model, count in more.items()
        )

    def keeps(self, model: ModelId) -> Kept | None:
        """Its model has given as many as it is to give."""
        gone = self.by_model[model]
        if gone < self.most_of_a_model:
            return None
        text = f"{counted(gone, 'replica')} of its model evicted in the last hour, of {self.most_of_a_model}"
        return Kept(Why.BUDGET, text)


def proposals(snapshot: Snapshot, verdicts: Verdicts, now: float) -> tuple[Proposal, ...]:
    """What `suggest` shows: for the first of those that wait, on the rooms as they are; also for who was
    refused and told to come again. Empty under the other policies: off means off, and on does it."""
    if snapshot.intervals.eviction is not EvictionPolicy.SUGGEST:
        return ()
    shown = propose(snapshot, verdicts, rooms(snapshot, now), waiting(snapshot, now), now)
    return tuple(islice(shown, SUGGESTED_MOST))


def propose(
    snapshot: Snapshot, verdicts: Verdicts, found: Rooms, waits: Iterable[Wait], now: float
) -> Iterable[Proposal]:
    """In their order. Each on the same rooms `found`, so only the first is sure to hold beside another."""
    if is_learning(snapshot, now) or brake(snapshot, now).on:
        return
    costs, spent = prices(snapshot, now), spent_lately(snapshot, now)
    owing = owed(snapshot.stored)
    hopeless: set[ModelId] = set()
    coming = _Coming(snapshot, now)
    candidates = _Candidates(snapshot, verdicts, costs, spent, now)
    for wait in waits:
        row, model = wait.row, wait.model
        if row.replica_id in owing or model.name in hopeless or is_resting(row):
            continue
        if len(hopeless) >= HOPELESS_MOST:
            return
        choice = None
        if not coming.room_for(model):
            may = candidates.for_(wait)
            choice = _choice(snapshot, found, wait, may, spent, now)
        wanted = {**owing, row.replica_id: frozenset(choice.leaving if choice else ())}
        # What it lacks beside devices, such as ports, their leaving does not give.
        if choice is None or row.replica_id not in places_after(snapshot, wanted, now):
            hopeless.add(model.name)
            continue
        yield proposal_of(snapshot, verdicts, row, choice, costs, now)


def may_make_room(
    snapshot: Snapshot, verdicts: Verdicts, wait: Wait, costs: Prices, spent: Spent, now: float
) -> tuple[dict[ReplicaId, Candidate], dict[ReplicaId, Kept]]:
    """Of all that is idle: who may leave for it, and who not and why."""
    may, stay = _sorted_out(snapshot, verdicts, wait, costs, spent, now)
    own = {row.replica_id for row in snapshot.stored.by_model.get(wait.row.model, ())}
    return (
        {name: one for name, one in may.items() if name not in own},
        {name: why for name, why in stay.items() if name not in own},
    )


def _sorted_out(
    snapshot: Snapshot, verdicts: Verdicts, wait: Wait, costs: Prices, spent: Spent, now: float
) -> tuple[dict[ReplicaId, Candidate], dict[ReplicaId, Kept]]:
    """With those of its own model; depends on no more of it than its priority and whether it is overdue."""
    late = wait.overdue(snapshot, now)
    # Two reports of every router that tell of no use are enough for who has waited too long.
    enough_s = 2 * snapshot.intervals.router_stale_s if late else None
    asker = Asker(priority=wait.model.priority, overdue_idle_s=enough_s)
    may: dict[ReplicaId, Candidate] = {}
    stay: dict[ReplicaId, Kept] = {}
    for replica_id, verdict in sorted(verdicts.by_replica.items()):
        row = snapshot.stored.replicas.get(replica_id)
        theirs = snapshot.catalog.models.get(row.model) if row is not None else None
        if row is None or theirs is None or not isinstance(verdict, Idle):
            continue
        why = kept(snapshot, row, theirs, verdict, asker, costs, now)
        if why is None and not late:
            why = spent.keeps(row.model)
        if why is not None:
            stay[replica_id] = why
        else:
            may[replica_id] = _candidate(row, theirs, verdict, costs)
    return may, stay


def usual_free_s(snapshot: Snapshot, model: ModelId | None = None) -> float | None:
    """From the decision to the free room: median of those that were done, of all or where this model left;
    None: none was."""
    took = sorted(
        one.freed_at - one.decided_at
        for one in snapshot.stored.evictions.values()
        if one.state is EvictionState.DONE and one.freed_at is not None
        if model in (None, one.victim_model)
    )
    return quantile(took, 0.5) if took else None


def profile_of(snapshot: Snapshot, row: ReplicaRow) -> Profile | None:
    model = snapshot.catalog.models.get(row.model)
    return model.profile(row.profile) if model is not None else None


class _Candidates:
    """Who may leave, found once for all who wait with one priority: each then spares its own model."""

    def __init__(
        self, snapshot: Snapshot, verdicts: Verdicts, costs: Prices, spent: Spent, now: float
    ) -> None:
        self._snapshot = snapshot
        self._verdicts = verdicts
        self._costs = costs
        self._spent = spent
        self._now = now
        self._found: dict[tuple[int, bool], dict[ReplicaId, Candidate]] = {}

    def for_(self, wait: Wait) -> dict[ReplicaId, Candidate]:
        key = (wait.model.priority, wait.overdue(self._snapshot, self._now))
        if key not in self._found:
            self._found[key], _ = _sorted_out(
                self._snapshot, self._verdicts, wait, self._costs, self._spent, self._now
            )
        found = self._found[key]
        own = {row.replica_id for row in self._snapshot.stored.by_model.get(wait.model.name, ())}
        return {name: one for name, one in found.items() if name not in own} if own & found.keys() else found


class _Coming:
    """Room that comes free by itself: nobody need leave for who will have that."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        victims = {one.victim_replica_id for one in snapshot.stored.leaving_for.values()}
        self._snapshot = snapshot
        self._now = now
        self._rooms: Rooms | None = None
        self._leaving = frozenset(
            row.replica_id
            for row in snapshot.stored.sorted_replicas
            if row.wish is not Wish.SERVE and row.holds_devices and row.replica_id not in victims
            if not exit_is_overdue(snapshot, row, now)
        )

    def room_for(self, model: Model) -> bool:
        if not self._leaving:
            return False
        if self._rooms is None:
            self._rooms = rooms(self._snapshot, self._now)
        memo = memo_of(self._snapshot, self._rooms)
        return any(
            explain(model, profile, self._rooms, evictable=self._leaving, memo=memo).fit is not Fit.NEVER
            for profile in startable(self._snapshot.stored, model, self._snapshot.intervals)
        )


def _choice(
    snapshot: Snapshot,
    found: Rooms,
    wait: Wait,
    may: dict[ReplicaId, Candidate],
    spent: Spent,
    now: float,
) -> Choice | None:
    if not may or (spent.all_gone and not wait.overdue(snapshot, now)):
        return None
    profiles = startable(snapshot.stored, wait.model, snapshot.intervals)
    memo = memo_of(snapshot, found)
    choice = choose(replace(wait.model, profiles=profiles), found, may, memo)
    if choice is None or wait.overdue(snapshot, now):
        return choice
    models = Counter(snapshot.stored.replicas[name].model for name in choice.leaving)
    return choice if spent.leaves_room_for(models) else None


def _candidate(row: ReplicaRow, model: Model, idle: Idle, costs: Prices) -> Candidate:
    return Candidate(
        row.replica_id,
        costs.cost_s(model, model.profile(row.profile)),
        idle.for_s,
        frozenset(shard.node_id for shard in row.shards if not shard.released),
    )


def proposal_of(
    snapshot: Snapshot, verdicts: Verdicts, row: ReplicaRow, choice: Choice, costs: Prices, now: float
) -> Proposal:
    victims = tuple(snapshot.stored.replicas[name] for name in choice.leaving)
    reloads = [
        costs.reload_s(snapshot.catalog.models[one.model], profile_of(snapshot, one)) for one in victims
    ]
    known = [seconds for seconds in reloads if seconds is not None]
    told = []
    for one in victims:
        verdict = verdicts.by_replica[one.replica_id]
        assert isinstance(verdict, Idle)
        told.append(f"{one.replica_id} ({counted(one.gpus_held, 'GPU')}, idle {lasting(verdict.for_s)})")
    leave = "leaves" if len(victims) == 1 else "leave"
    return Proposal(
        row,
        victims,
        f"{' and '.join(told)} {leave} for {row.replica_id}, which waits for {lasting(now - row.since)}",
        usual_free_s(snapshot),
        sum(known) if len(known) == len(reloads) else None,
    )


def spent_lately(snapshot: Snapshot, now: float) -> Spent:
    """Those under way and done; a cancelled one has cost nobody anything."""
    return Spent(
        Counter(
            one.victim_model
            for one in snapshot.stored.evictions.values()
            if one.state in (EvictionState.DRAINING, EvictionState.DONE) and now - one.decided_at < HOUR_S
        ),
        snapshot.intervals.evictions_per_hour,
        snapshot.intervals.evictions_per_model_per_hour,
    )
