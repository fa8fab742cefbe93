"""Why a model does or does not fit, and the cheapest thing to do about it; the verdict is the pass's own."""

from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.availability import Availability, live_rows, model_state
from llmgw_controller.core.capacity import Part, device_line
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.deployments import is_stopped
from llmgw_controller.core.explain import Explanation, Fit, NearMiss, Spot
from llmgw_controller.core.failing import resting_nodes, startable, told_failing
from llmgw_controller.core.fix import Fix, ready_in
from llmgw_controller.core.fixes import fixes, other_classes
from llmgw_controller.core.idle_holders import IdleHolder, idle_holders
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.placement import explain
from llmgw_controller.core.question import WAITING, Answer, Question, ask, one_more, rooms_before, waiting
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.state import EvictionPolicy, Snapshot
from llmgw_controller.core.watchdog import ailing
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ModelId, NodeId


@dataclass(frozen=True)
class NearMissLine:
    """A node that has room, or would have it: what is free and what holds the rest."""

    miss: NearMiss
    fabric: str | None
    text: str


@dataclass(frozen=True)
class WhyProfile:
    explanation: Explanation
    near: tuple[NearMissLine, ...]
    #: None: none helps, or none is needed.
    cheapest: Fix | None
    others: tuple[Fix, ...]

    @property
    def fix(self) -> str | None:
        """A command to type."""
        return self.cheapest.command if self.cheapest else None


@dataclass(frozen=True)
class Why:
    model: ModelId
    #: The best of the profiles.
    fit: Fit
    profiles: tuple[WhyProfile, ...]
    #: What its replicas do now, in one line.
    now: str
    #: Oldest replica that waits for room; None: none does, and one more was asked about.
    waiting_since: float | None
    held: int
    #: There is room and it is not placed now all the same: what is in the way. None: nothing, or no room.
    held_back: str | None
    #: Of the nodes that are near: the part of the bar of each of their devices.
    parts: tuple[tuple[NodeId, tuple[Part, ...]], ...]
    #: Who would have to leave, and what keeps each; empty where it is placed.
    idle: tuple[IdleHolder, ...]
    #: Whether anybody is let go for it without being told.
    eviction: EvictionPolicy
    #: Replicas of the model that are wanted.
    replicas: int

    def parts_of(self, node_id: NodeId) -> tuple[Part, ...]:
        """In the node's order."""
        return dict(self.parts)[node_id]


def why(snapshot: Snapshot, verdicts: Verdicts, model: Model, now: float) -> Why:
    """What becomes of the model's waiting replica, or of one more where none waits."""
    asked = waiting(snapshot, model)
    answer = ask(asked, now) if asked is not None else None
    if asked is None or answer is None:
        # None waits, or the one that does is let go by this very pass.
        asked = one_more(snapshot, model, now)
        answer = ask(asked, now)
    assert answer is not None, f"{model.name}: one more than it has is not wanted"
    found = rooms_before(asked, answer, now)
    profiles = tuple(
        _profile(snapshot, asked, answer, profile, found, verdicts, now) for profile in asked.model.profiles
    )
    held_back = None
    fit = _best(profiles)
    if fit is Fit.NOW and not answer.placed:
        held_back = _held_back(asked, answer, now)
    if answer.placed:
        fit = Fit.NOW
    since = [row.since for row in live_rows(snapshot, model) if row.phase in WAITING]
    if not answer.placed and held_back is None:
        profiles = _with_other_classes(asked.model, profiles, found)
    return Why(
        model.name,
        fit,
        profiles,
        _now(snapshot, model, now),
        min(since, default=None),
        snapshot.held.get(model.name, 0),
        held_back,
        _parts(answer.snapshot, profiles, found, verdicts),
        ()
        if answer.placed
        else idle_holders(asked, answer, (one.explanation for one in profiles), verdicts, now),
        snapshot.intervals.eviction,
        len(live_rows(snapshot, model)),
    )


def _parts(
    snapshot: Snapshot, profiles: tuple[WhyProfile, ...], found: Rooms, verdicts: Verdicts
) -> tuple[tuple[NodeId, tuple[Part, ...]], ...]:
    near = sorted({line.miss.node_id for one in profiles for line in one.near})
    return tuple(
        (
            node_id,
            tuple(device_line(device, snapshot.stored, verdicts).part for device in found[node_id].devices),
        )
        for node_id in near
    )


def _best(profiles: tuple[WhyProfile, ...]) -> Fit:
    order = list(Fit)
    return min((one.explanation.fit for one in profiles), key=order.index)


def _profile(
    snapshot: Snapshot,
    asked: Question,
    answer: Answer,
    profile: Profile,
    found: Rooms,
    verdicts: Verdicts,
    now: float,
) -> WhyProfile:
    idle = idle_replicas(snapshot, verdicts)
    resting = resting_nodes(snapshot.stored, asked.replica_id, now, snapshot.intervals)
    told = explain(asked.model, profile, found, resting=resting, evictable=idle)
    if answer.placed and answer.row.profile == profile.name:
        spots = tuple(Spot(shard.node_id, shard.device_ids) for shard in answer.row.shards)
        told = replace(told, fit=Fit.NOW, spots=spots, leaving=())
    near = _near_lines(told, found, verdicts)
    if answer.placed:
        mine = answer.row.profile == profile.name
        return WhyProfile(told, near, _to_start(snapshot, asked, profile, now) if mine else None, ())
    ways = fixes(asked, profile, told, found, verdicts, now)
    typed = [fix for fix in ways if fix.command is not None]
    cheapest = typed[0] if typed else None
    return WhyProfile(told, near, cheapest, tuple(fix for fix in ways if fix is not cheapest))


def _to_start(snapshot: Snapshot, asked: Question, profile: Profile, now: float) -> Fix | None:
    """It fits, and nothing starts it by itself."""
    name = asked.model.name
    model = snapshot.catalog.models.get(name)
    seconds = ready_in(snapshot, asked.model, profile)
    if is_stopped(snapshot.stored, name):
        return Fix(f"llmgwctl model start {name}", "serve it again", 0.0, seconds)
    if asked.real or model is None or not model.activate_on_demand:
        return None
    if model_state(snapshot, model, now).availability is not Availability.COLD:
        return None
    return Fix(f"llmgwctl model activate {name}", "start it", 0.0, seconds)


def _near_lines(told: Explanation, found: Rooms, verdicts: Verdicts) -> tuple[NearMissLine, ...]:
    """Near misses, and for a gang also the nodes beside them that are free: it takes both."""
    misses = list(told.near_misses)
    if misses and told.nodes_needed > 1:
        needed = misses[0].needed
        misses += [NearMiss(node_id, needed, needed, ()) for node_id in told.fitting]
    lines = [
        NearMissLine(miss, _fabric(found, miss.node_id), _near(miss, found, verdicts)) for miss in misses
    ]
    return tuple(sorted(lines, key=lambda line: (line.fabric or "", line.miss.node_id)))


def _fabric(found: Rooms, node_id: NodeId) -> str | None:
    return next(iter(sorted(found[node_id].node.fabrics)), None)


def _near(miss: NearMiss, found: Rooms, verdicts: Verdicts) -> str:
    if not miss.evict:
        return "free"
    devices = found[miss.node_id].devices
    held = []
    for name in miss.evict:
        count = sum(device.replica_id == name for device in devices)
        verdict = verdicts.by_replica.get(name)
        since = ""
        if isinstance(verdict, Idle):
            since = f", idle {lasting(verdict.for_s)}" + (", never asked" if verdict.never_asked else "")
        held.append(f"{name} holds {count}{since}")
    return f"{miss.free} of {len(devices)} free; {'; '.join(held)}"


def _with_other_classes(
    model: Model, profiles: tuple[WhyProfile, ...], found: Rooms
) -> tuple[WhyProfile, ...]:
    last = profiles[-1]
    return (*profiles[:-1], replace(last, others=(*last.others, *other_classes(model, found))))


def _held_back(asked: Question, answer: Answer, now: float) -> str:
    row, snapshot = answer.row, asked.snapshot
    if not startable(snapshot.stored, asked.model, snapshot.intervals):
        told = told_failing(snapshot.stored, asked.model, snapshot.intervals)
        return f"not started: {told}; to try again: llmgwctl model start {asked.model.name}"
    if row.phase is Phase.BACKOFF and row.until is not None:
        return f"{row.reason}; again in {lasting(row.until - now)}"
    return row.reason or f"it is {row.phase.value}"


def _now(snapshot: Snapshot, model: Model, now: float) -> str:
    rows = live_rows(snapshot, model)
    if is_stopped(snapshot.stored, model.name):
        return f"stopped by an operator; to serve it again: llmgwctl model start {model.name}"
    if not rows:
        return "cold: no replica is wanted"
    ready = sum(is_routable(row, snapshot, now) for row in rows)
    others = []
    for row in rows:
        told = ailing(snapshot, row, now)
        if not is_routable(row, snapshot, now):
            line = f"{row.replica_id} {row.phase.value} for {lasting(now - row.since)}"
            if row.phase is Phase.BACKOFF and row.until is not None:
                line += f" ({row.reason}), again in {lasting(row.until - now)}"
            others.append(line if told is None else f"{line}, {told}")
        elif told is not None:
            others.append(f"{row.replica_id} {told}")
    return "; ".join([f"{ready} of {len(rows)} ready", *others])
