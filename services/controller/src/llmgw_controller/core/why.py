"""Why a model does or does not fit, and the cheapest thing to do about it; from the planner's own search."""

from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.apply import apply
from llmgw_controller.core.availability import Availability, live_rows, model_state
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Room, Rooms, Use, rooms, with_claim
from llmgw_controller.core.dismissal import successor
from llmgw_controller.core.explain import Explanation, Fit, NearMiss, Reason
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.placement import explain
from llmgw_controller.core.placing import rank
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.replica import is_routable, with_wish
from llmgw_controller.core.roster import leaving_wish
from llmgw_controller.core.state import Phase, Schedulability, Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ModelId, NodeId, ReplicaId

_WAITING = frozenset({Phase.WANTED, Phase.UNPLACEABLE})

#: Stands for a replica that has no row yet.
_SUCCESSOR = ReplicaId("successor")


@dataclass(frozen=True)
class NearMissLine:
    """A near miss in words: what is free and what holds the rest."""

    node_id: NodeId
    text: str


@dataclass(frozen=True)
class WhyProfile:
    explanation: Explanation
    near: tuple[NearMissLine, ...]
    #: A command to type; None: none helps.
    fix: str | None


@dataclass(frozen=True)
class Why:
    model: ModelId
    #: The best of the profiles.
    fit: Fit
    profiles: tuple[WhyProfile, ...]
    #: What its replicas do now, in one line.
    now: str


def why(snapshot: Snapshot, verdicts: Verdicts, model: Model, now: float) -> Why:
    """Would one more replica fit now?"""
    found = rooms(snapshot, now)
    idle = idle_replicas(snapshot, verdicts)
    profiles = []
    for profile in model.profiles:
        explanation = explain(model, profile, found, evictable=idle)
        fix = _fix(snapshot, model, profile, found, explanation, now)
        back = fix is None and explanation.fit is Fit.AFTER_EVICTION
        near = tuple(
            NearMissLine(miss.node_id, _near(miss, found, verdicts, back=back))
            for miss in explanation.near_misses
        )
        profiles.append(WhyProfile(explanation, near, fix))
    order = list(Fit)
    best = min((one.explanation.fit for one in profiles), key=order.index)
    return Why(model.name, best, tuple(profiles), _now(snapshot, model, now))


def _near(miss: NearMiss, found: Rooms, verdicts: Verdicts, *, back: bool) -> str:
    total = len(found[miss.node_id].devices)
    held = []
    for name in miss.evict:
        count = sum(device.replica_id == name for device in found[miss.node_id].devices)
        verdict = verdicts.by_replica.get(name)
        since = ""
        if isinstance(verdict, Idle):
            since = f", idle {lasting(verdict.for_s)}" + (", never asked" if verdict.never_asked else "")
        held.append(f"{name} holds {count}{since}")
    they = "it" if len(miss.evict) == 1 else "they"
    again = f"; drained, {they} would be started again there first" if back else ""
    return f"{miss.free} of {total} free; {'; '.join(held)}{again}"


def _fix(
    snapshot: Snapshot,
    model: Model,
    profile: Profile,
    found: Rooms,
    explanation: Explanation,
    now: float,
) -> str | None:
    if explanation.fit is Fit.NOW:
        cold = model_state(snapshot, model, now).availability is Availability.COLD
        return f"llmgwctl model activate {model.name}" if cold and model.activate_on_demand else None
    if explanation.fit is Fit.AFTER_EVICTION:
        makes_room = _makes_room(snapshot, model, profile, found, explanation.leaving, now)
        return f"llmgwctl replica drain {' '.join(explanation.leaving)}" if makes_room else None
    cordoned = next((one for one in explanation.filters if one.reason is Reason.CORDONED), None)
    for node_id in cordoned.node_ids if cordoned else ():
        eased = {**found, node_id: _uncordoned(found[node_id])}
        if explain(model, profile, eased).fit is Fit.NOW:
            return f"llmgwctl node uncordon {node_id}"
    return None


def _makes_room(
    snapshot: Snapshot,
    model: Model,
    profile: Profile,
    found: Rooms,
    leaving: tuple[ReplicaId, ...],
    now: float,
) -> bool:
    """Drained, they leave the room to `model`: their successors, placed before it, do not take it."""
    rows = live_rows(snapshot, model)
    waits = model.replicas > len(rows) or any(row.phase in _WAITING for row in rows)
    for name in leaving:
        row = snapshot.stored.replicas[name]
        gone = with_wish(row, leaving_wish(row), because="asked why")
        kept = successor(snapshot, gone, now)
        snapshot = replace(snapshot, stored=apply(snapshot.stored, (PutReplica(gone),)))
        if kept is None:
            continue
        fits = (explain(kept, one, found) for one in kept.profiles)
        spots = next((one.spots for one in fits if one.fit is Fit.NOW), None)
        if spots is None and (not waits or rank(kept) < rank(model)):
            return False  # Both wait for the same devices, and it is placed first.
        for spot in spots or ():
            found = with_claim(found, kept.name, _SUCCESSOR, spot.node_id, spot.device_ids, ())
    return explain(model, profile, found, evictable=frozenset(leaving)).fit is not Fit.NEVER


def _uncordoned(room: Room) -> Room:
    return replace(
        room,
        node=replace(room.node, schedulability=Schedulability.SCHEDULABLE),
        takes_work=room.state is NodeState.READY and not room.tombstones,
        devices=tuple(
            replace(device, use=Use.FREE) if device.use is Use.CORDONED else device for device in room.devices
        ),
    )


def _now(snapshot: Snapshot, model: Model, now: float) -> str:
    rows = live_rows(snapshot, model)
    if not rows:
        return "cold: no replica is wanted"
    ready = sum(is_routable(row, snapshot, now) for row in rows)
    others = [
        f"{row.replica_id} {row.phase.value} for {lasting(now - row.since)}"
        for row in rows
        if not is_routable(row, snapshot, now)
    ]
    return "; ".join([f"{ready} of {len(rows)} ready", *others])
