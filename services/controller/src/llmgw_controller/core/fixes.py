"""Fixes: what could be done so that a replica finds its place, each tried on the pass before it is named.

Cheapest first, by what it costs to bring back what leaves, as the evictor prices it. A fix that does not help
is not told: a drained replica whose successor is placed first makes no room.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.explain import Explanation, Fit, Reason
from llmgw_controller.core.hearing import last_seen
from llmgw_controller.core.loads import eta
from llmgw_controller.core.proposals import usual_free_s
from llmgw_controller.core.question import Question, ask, drained, heard_again, stopped, uncordoned
from llmgw_controller.core.regret import Prices, prices
from llmgw_controller.core.rows import Cause
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.victims import Candidate, choose
from llmgw_controller.core.words import counted, lasting
from llmgw_kit.ids import NodeId, ReplicaId

#: Sets of leaving replicas tried for one profile; each costs a pass.
SETS_TRIED = 4
#: Nodes tried each for being taken back, and for being heard again.
NODES_TRIED = 4


@dataclass(frozen=True)
class Fix:
    """One way to make it fit, with its price. Times are seconds from now; None: never measured."""

    #: To be typed as it stands; None: nothing to type, only to wait for or to decide.
    command: str | None
    text: str
    frees_in_s: float | None = None
    ready_in_s: float | None = None
    reload_s: float | None = None
    #: What leaves for it.
    leaving: tuple[ReplicaId, ...] = ()


def fixes(
    asked: Question,
    profile: Profile,
    told: Explanation,
    found: Rooms,
    verdicts: Verdicts,
    now: float,
) -> tuple[Fix, ...]:
    """Those that help, cheapest first; what only waiting brings comes last."""
    if told.fit is Fit.NOW:
        return ()
    helpful = [
        *_evictions(asked, profile, told, found, verdicts, now),
        *_cordoned(asked, profile, told, now),
        *_silent(asked, told, now),
    ]
    return tuple(sorted(helpful, key=lambda fix: fix.command is None))


def ready_in(snapshot: Snapshot, model: Model, profile: Profile) -> float | None:
    """From placing to ready, the median of what was measured."""
    known = eta(snapshot.stored.loads, model.name, profile)
    return known.p50_s if known is not None else None


def _evictions(
    asked: Question, profile: Profile, told: Explanation, found: Rooms, verdicts: Verdicts, now: float
) -> Iterator[Fix]:
    if told.fit is not Fit.AFTER_EVICTION:
        return
    costs = prices(asked.snapshot, now)
    refused: list[tuple[ReplicaId, ...]] = []
    for leaving in _sets(asked, profile, told, found, verdicts, costs)[:SETS_TRIED]:
        answer = ask(drained(asked, frozenset(leaving), now), now)
        if answer is not None and answer.placed:
            text = f"drain {', '.join(leaving)}{_by_itself(asked.snapshot, leaving, verdicts)}"
            command = f"llmgwctl replica drain {' '.join(leaving)}"
            yield _priced(asked, profile, leaving, command, text, costs)
        else:
            refused.append(leaving)
    for leaving in refused[:1]:
        yield from _stops(asked, profile, leaving, verdicts, costs, now)


def _sets(
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
        yield _priced(asked, profile, tuple(row.replica_id for row in rows), command, text, costs)


def _priced(
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


def _cordoned(asked: Question, profile: Profile, told: Explanation, now: float) -> Iterator[Fix]:
    for node_id in _nodes(told, Reason.CORDONED, Reason.DRAINING)[:NODES_TRIED]:
        answer = ask(uncordoned(asked, node_id), now)
        if answer is not None and answer.placed:
            node = asked.snapshot.stored.nodes[node_id]
            why = f" (set aside: {node.reason})" if node.reason else ""
            text = f"take {node_id} back{why}"
            load_s = ready_in(asked.snapshot, asked.model, profile)
            yield Fix(f"llmgwctl node uncordon {node_id}", text, 0.0, load_s, 0.0)


def _silent(asked: Question, told: Explanation, now: float) -> Iterator[Fix]:
    for node_id in _nodes(told, Reason.UNREACHABLE)[:NODES_TRIED]:
        answer = ask(heard_again(asked, node_id, now), now)
        if answer is not None and answer.placed:
            left_s = last_seen(asked.snapshot, node_id) + asked.snapshot.intervals.lost_after_s - now
            until = f"; it is lost in {lasting(left_s)}" if left_s > 0 else ""
            yield Fix(None, f"wait: it is placed when {node_id} is heard again{until}")


def other_classes(model: Model, found: Rooms) -> tuple[Fix, ...]:
    """Classes that no profile of the model names and that have as many GPUs free on one node."""
    named = {profile.gpu_class for profile in model.profiles}
    needed = min(profile.gpus for profile in model.profiles)
    best: dict[str, tuple[int, str]] = {}
    for node_id, room in found.items():
        if not room.takes_work:
            continue
        free: dict[str, int] = {}
        for device in room.devices:
            if device.use.value == "free" and device.gpu_class not in named:
                free[device.gpu_class] = free.get(device.gpu_class, 0) + 1
        for gpu_class, count in free.items():
            if count > best.get(gpu_class, (0, ""))[0]:
                best[gpu_class] = (count, node_id)
    return tuple(
        Fix(None, f"{gpu_class}: {counted(count, 'GPU')} free on {node_id}; the model has no profile for it")
        for gpu_class, (count, node_id) in sorted(best.items())
        if count >= needed
    )


def _nodes(told: Explanation, *reasons: Reason) -> list[NodeId]:
    return [node_id for one in told.filters if one.reason in reasons for node_id in one.node_ids]
