"""Why a model does or does not fit, and the cheapest thing to do about it; from the planner's own search."""

from dataclasses import dataclass, replace

from llmgw_controller.core.activity import Idle, Verdicts
from llmgw_controller.core.availability import Availability, live_rows, model_state
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Room, Rooms, Use, rooms
from llmgw_controller.core.explain import Explanation, Fit, Reason
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.placement import explain
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.state import Schedulability, Snapshot
from llmgw_controller.core.words import lasting
from llmgw_kit.ids import ModelId, NodeId


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
        near = tuple(
            NearMissLine(miss.node_id, _near(miss.node_id, found, explanation, verdicts))
            for miss in explanation.near_misses
        )
        fix = _fix(snapshot, model, profile, found, explanation, now)
        profiles.append(WhyProfile(explanation, near, fix))
    order = list(Fit)
    best = min((one.explanation.fit for one in profiles), key=order.index)
    return Why(model.name, best, tuple(profiles), _now(snapshot, model, now))


def _near(node_id: NodeId, found: Rooms, explanation: Explanation, verdicts: Verdicts) -> str:
    miss = next(one for one in explanation.near_misses if one.node_id == node_id)
    total = len(found[node_id].devices)
    held = []
    for name in miss.evict:
        count = sum(device.replica_id == name for device in found[node_id].devices)
        verdict = verdicts.by_replica.get(name)
        since = ""
        if isinstance(verdict, Idle):
            since = f", idle {lasting(verdict.for_s)}" + (", never asked" if verdict.never_asked else "")
        held.append(f"{name} holds {count}{since}")
    return f"{miss.free} of {total} free; {'; '.join(held)}"


def _fix(
    snapshot: Snapshot,
    model: Model,
    profile: Profile,
    found: Rooms,
    explanation: Explanation,
    now: float,
) -> str | None:
    if explanation.fit is Fit.NOW:
        if model_state(snapshot, model, now).availability is Availability.COLD:
            return f"llmgwctl model activate {model.name}"
        return None
    if explanation.fit is Fit.AFTER_EVICTION:
        names = " ".join(explanation.leaving)
        return f"llmgwctl replica drain {names} --for {model.name}"
    cordoned = next((one for one in explanation.filters if one.reason is Reason.CORDONED), None)
    for node_id in cordoned.node_ids if cordoned else ():
        eased = {**found, node_id: _uncordoned(found[node_id])}
        if explain(model, profile, eased).fit is Fit.NOW:
            return f"llmgwctl node uncordon {node_id}"
    return None


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
