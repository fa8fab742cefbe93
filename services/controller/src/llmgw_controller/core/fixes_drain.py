"""Fixes that let idle replicas go: drained, or their model stopped where configuration would start another.

Cheapest first, by what it costs to bring back what leaves, as the evictor prices it. For a replica that waits
in the rows the room is handed over to it alone; else one whose successor is placed first makes no room.
"""

from collections.abc import Iterator
from dataclasses import replace

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.catalog import Profile
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.earmarks import owed, places_after
from llmgw_controller.core.explain import Explanation, Fit
from llmgw_controller.core.fix import Fix, ready_in
from llmgw_controller.core.proposals import usual_free_s
from llmgw_controller.core.question import Question, ask, drained, stopped
from llmgw_controller.core.regret import Prices, prices
from llmgw_controller.core.rows import Cause, Phase
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.victims import Candidate, choose
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ReplicaId

#: Sets of leaving replicas tried for one profile; each costs a pass.
SETS_TRIED = 4


def evictions(
    asked: Question, profile: Profile, told: Explanation, found: Rooms, verdicts: Verdicts, now: float
) -> Iterator[Fix]:
    if told.fit is not Fit.AFTER_EVICTION:
        return
    costs = prices(asked.snapshot, now)
    refused: list[tuple[ReplicaId, ...]] = []
    for leaving in sets(asked, profile, told, found, verdicts, costs)[:SETS_TRIED]:
        answer = ask(drained(asked, frozenset(leaving), now), now)
        if answer is not None and answer.placed:
            yield _drain(asked, profile, leaving, verdicts, costs, handed=_handed_over(asked, leaving, now))
        else:
            refused.append(leaving)
    for leaving in refused[:1]:
        ways = list(_stops(asked, profile, leaving, verdicts, costs, now))
        yield from ways
        if not ways and _handed_over(asked, leaving, now):
            yield _drain(asked, profile, leaving, verdicts, costs, handed=True)


def _drain(
    asked: Question,
    profile: Profile,
    leaving: tuple[ReplicaId, ...],
    verdicts: Verdicts,
    costs: Prices,
    *,
    handed: bool,
) -> Fix:
    text = f"drain {', '.join(leaving)}{_by_itself(asked.snapshot, leaving, verdicts)}"
    command = f"llmgwctl replica drain {' '.join(leaving)}"
    # Nobody else gets the room then, whatever his rank; and whoever is used meanwhile stays.
    command += f" --for {asked.model.name}" if handed else ""
    return priced(asked, profile, leaving, command, text, costs)


def _handed_over(asked: Question, leaving: tuple[ReplicaId, ...], now: float) -> bool:
    """It waits in the rows, and finds its place where these are gone, beside those whose room is made."""
    row = asked.plain.stored.replicas.get(asked.replica_id)
    if not asked.real or row is None or row.phase is not Phase.UNPLACEABLE:
        return False
    owing = owed(asked.plain.stored)
    if row.replica_id in owing:
        return False
    return row.replica_id in places_after(asked.plain, {**owing, row.replica_id: frozenset(leaving)}, now)


def sets(
    asked: Question,
    profile: Profile,
    told: Explanation,
    found: Rooms,
    verdicts: Verdicts,
    costs: Prices,
) -> list[tuple[ReplicaId, ...]]:
    """Sets of idle replicas that would leave room, cheapest first: the evictor's choice, the fewest, and
    those of each near miss."""
    names = {name for miss in told.near_misses for name in miss.evict} | set(told.leaving)
    candidates = {name: _candidate(asked.snapshot, name, verdicts, costs) for name in sorted(names)}
    alone = replace(asked.model, profiles=(profile,))
    best = choose(alone, found, candidates)
    sets = {told.leaving, *(miss.evict for miss in told.near_misses if profile.nodes == 1 and miss.evict)}
    if best is not None:
        sets.add(best.leaving)
    return sorted(
        (one for one in sets if one),
        key=lambda one: (
            sum(candidates[name].cost_s for name in one),
            len(one),
            -sum(candidates[name].idle_s for name in one),
            one,
        ),
    )


def _candidate(snapshot: Snapshot, name: ReplicaId, verdicts: Verdicts, costs: Prices) -> Candidate:
    row = snapshot.stored.replicas[name]
    model = snapshot.catalog.models[row.model]
    verdict = verdicts.by_replica.get(name)
    return Candidate(
        name,
        costs.cost_s(model, model.profile(row.profile)),
        verdict.for_s if isinstance(verdict, Idle) else 0.0,
        frozenset(shard.node_id for shard in row.shards if not shard.released),
    )


def _stops(
    asked: Question,
    profile: Profile,
    leaving: tuple[ReplicaId, ...],
    verdicts: Verdicts,
    costs: Prices,
    now: float,
) -> Iterator[Fix]:
    """Where configuration would start what was drained again, and first: its model is stopped as a whole, if
    nothing of it is in use."""
    names = sorted({asked.snapshot.stored.replicas[name].model for name in leaving})
    if len(names) != 1 or (model := asked.snapshot.catalog.models.get(names[0])) is None:
        return
    rows = asked.snapshot.stored.by_model.get(model.name, ())
    if not all(isinstance(verdicts.by_replica.get(row.replica_id), Idle) for row in rows):
        return
    answer = ask(stopped(asked, model, now), now)
    if answer is not None and answer.placed:
        text = f"stop {model.name} until it is started again: drained, it would be started first"
        command = f"llmgwctl model stop {model.name}"
        yield priced(asked, profile, tuple(row.replica_id for row in rows), command, text, costs)


def priced(
    asked: Question,
    profile: Profile,
    leaving: tuple[ReplicaId, ...],
    command: str,
    text: str,
    costs: Prices,
) -> Fix:
    snapshot = asked.snapshot
    frees = [usual_free_s(snapshot, snapshot.stored.replicas[name].model) for name in leaving]
    frees_s = None if any(one is None for one in frees) else max(one for one in frees if one is not None)
    load_s = ready_in(snapshot, asked.model, profile)
    reloads = []
    for name in leaving:
        row = snapshot.stored.replicas[name]
        model = snapshot.catalog.models.get(row.model)
        reloads.append(costs.reload_s(model, model.profile(row.profile)) if model else None)
    known = [one for one in reloads if one is not None]
    if frees_s is None and load_s is not None:
        text += f"; {asked.model.name} then loads for about {lasting(load_s)}"
    return Fix(
        command=command,
        text=text,
        frees_in_s=frees_s,
        ready_in_s=load_s + frees_s if load_s is not None and frees_s is not None else None,
        reload_s=sum(known) if len(known) == len(reloads) else None,
        leaving=leaving,
    )


def _by_itself(snapshot: Snapshot, leaving: tuple[ReplicaId, ...], verdicts: Verdicts) -> str:
    """Whether the controller does it without being told, and when."""
    if snapshot.intervals.eviction is EvictionPolicy.ON:
        return "; eviction is on: the controller does it when its rules allow"
    left: list[float] = []
    for name in leaving:
        row = snapshot.stored.replicas[name]
        model = snapshot.catalog.models.get(row.model)
        verdict = verdicts.by_replica.get(name)
        if model is None or model.idle_after_s is None or not isinstance(verdict, Idle):
            return ""
        if row.cause is not Cause.ACTIVATION:
            return ""
        left.append(model.idle_after_s - verdict.for_s)
    when = lasting(max(left, default=0.0))
    they = "it goes" if len(leaving) == 1 else "they go"
    return f"; unasked, {they} by {'itself' if len(leaving) == 1 else 'themselves'} in {when}"
