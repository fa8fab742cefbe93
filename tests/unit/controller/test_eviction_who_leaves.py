"""Who may be evicted, whom nothing moves, and when nobody need leave (cases 21, 23 and 25)."""

from dataclasses import replace

import pytest

from llmgw_controller.core.activation import Refused, decide
from llmgw_controller.core.activity import Activity
from llmgw_controller.core.apply import apply
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import PutDeployment
from llmgw_controller.core.rows import Cause, DeploymentRow, EvictionState, Phase, Wish
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_kit.ids import ModelId
from tests.unit.controller.build import (
    NOW,
    activity,
    ask,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    usual_reports,
)
from tests.unit.controller.room import ELSE, HELD, LOAD, NEW, OLD, ON, Room, idle_one, of_priority

CONFIGURED = replace(HELD, cause=Cause.CONFIGURATION)

STAYS = {
    "unknown: no Redis": Room(watched=Activity(None)),
    "unknown: Redis was flushed": Room(watched=activity(router(), watching_since=None, epoch=None)),
    "unknown: a router sends its map again": Room(watched=activity(router(epoch="before"))),
    "unknown: a router is late": Room(watched=activity(router(age_s=16), touched={"old/1": 7200})),
    "unknown: a router vanished": Room(watched=activity(touched={"old/1": 7200})),
    "unknown: a router restarted": Room(routers={"r1": member(incarnation="second-life")}),
    "busy": Room(watched=activity(router(old__1=1), touched={"old/1": 7200})),
    "idle too short": Room(watched=activity(router(), touched={"old/1": 3590.0})),
    "idle too short for its own span": Room(model("old", idle_after_s=8000.0), NEW),
    "watched too short": Room(watched=activity(router(), watching_since=500_000.0 - 3000)),
    "a router crashed lately": Room(routers={"r1": member(crashed_at=NOW - 100)}),
    "younger than its least residency": Room(model("old", idle_after_s=None, min_residency_s=8000.0), NEW),
    "younger than thrice its measured load": Room(loads=(LOAD,)),
    "pinned by its spec": Room(of_priority(0, pinned=True), NEW),
    "of higher priority, case 23": Room(of_priority(5), NEW),
    "configured, of equal priority": Room(of_priority(0, replicas=1), NEW, rows=(CONFIGURED,)),
    "requests are held for it, case 25": Room(held={ModelId("old"): 1}),
    "asked for": Room(activations=ask(OLD)),
    "let be after a cancelled drain": Room(rows=(replace(HELD, until=NOW + 100),)),
    "the leader learns": Room(nodes=[node("n1", 1), node("n2", 1)], words=[
        heard(node("n1", 1), usual_reports(node("n1", 1), (HELD,)))], term_started=NOW - 10),
    "eviction is off": Room(intervals=Intervals()),
    "eviction is only suggested": Room(intervals=replace(ON, eviction=EvictionPolicy.SUGGEST)),
    "no evictions are left this hour": Room(intervals=replace(ON, evictions_per_hour=0)),
    "none of its model are left this hour": Room(intervals=replace(ON, evictions_per_model_per_hour=0)),
    "nobody asks for what waits": Room(wanting=(), rows=(HELD, replace(
        replica(NEW, 1, Phase.UNPLACEABLE), cause=Cause.ACTIVATION, since=NOW - 5))),
}  # fmt: skip


@pytest.mark.parametrize("room", STAYS.values(), ids=STAYS.keys())
def test_who_stays(room):
    room.step()
    assert room.receipts == []
    assert room.rows["old/1"].wish is Wish.SERVE


GOES = {
    "idle for an hour where its model says nothing": Room(),
    "never asked, and watched all the time": Room(watched=activity(router())),
    "no router at all: nobody sends anything": Room(routers={}, watched=activity()),
    "configured, of lower priority": Room(
        of_priority(0, replicas=1), model("new", priority=1), rows=(CONFIGURED,)
    ),
    "Redis's clock is minutes away from ours": Room(
        watched=activity(router(), now=3.0e9, watching_since=3.0e9 - 86_400, touched={})
    ),
}


@pytest.mark.parametrize("room", GOES.values(), ids=GOES.keys())
def test_who_goes(room):
    if room.map.now > 1e9:
        reports = {key: replace(one, at=3.0e9 - 2) for key, one in room.map.routers.items()}
        room.map = replace(room.map, routers=reports)
    room.step()
    assert room.rows["old/1"].reason == "evicted for new/1"


def test_an_operators_pin_counts_and_one_taken_away_does_not():
    pinned = Room()
    wish = DeploymentRow(ModelId("old"), stopped=False, pinned=True, changed_at=NOW)
    pinned.snap = replace(pinned.snap, stored=apply(pinned.snap.stored, [PutDeployment(wish)]))
    pinned.step()
    assert pinned.receipts == []
    freed = Room(of_priority(0, pinned=True), NEW)
    freed.snap = replace(
        freed.snap, stored=apply(freed.snap.stored, [PutDeployment(replace(wish, pinned=False))])
    )
    freed.step()
    assert freed.receipt.state is EvictionState.DRAINING


def test_case_25_a_model_that_loads_slower_than_it_may_be_idle_is_not_evicted_before_it_served():
    """The idle clock starts at READY: a start that takes longer than every span is no idleness."""
    slow = model("old", idle_after_s=10.0, min_residency_s=0.0)
    loading = replica(
        slow, 1, Phase.STARTING, shard("old/1", "n1", 0), cause=Cause.ACTIVATION, since=NOW - 9000
    )
    room = Room(slow, NEW, rows=(loading,), watched=activity(router()))
    room.go_on()
    assert room.receipts == []
    room.tell(room.rows["old/1"], ShardState.SERVING, load_s=9000.0)
    room.go_on(1.0)
    assert room.rows["old/1"].phase is Phase.READY
    room.go_on(1.0)
    assert room.receipts == [], "idle for a second, not for nine thousand"


def test_case_21_what_can_never_fit_evicts_nobody_again_and_again():
    huge = model("new", profile("p", gpus_per_node=4, tensor_parallel=4))
    room = Room(OLD, huge)
    room.go_on(3.0, times=500)
    assert room.receipts == []
    assert room.rows["old/1"].ready_since == HELD.ready_since
    assert room.rows["new/1"].phase is Phase.UNPLACEABLE


def test_case_23_a_stray_request_for_a_lesser_model_is_refused_clearly():
    room = Room(of_priority(5), NEW)
    room.step()
    answer = decide(room.snap, ModelId("new"), room.now)
    assert isinstance(answer, Refused)
    assert answer.code == "no_capacity"
    assert room.rows["old/1"].wish is Wish.SERVE


def test_who_has_waited_too_long_gets_room_over_budget_and_residency():
    young = replace(HELD, ready_since=NOW - 100)
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 590)
    room = Room(
        rows=(young, waits), watched=activity(router(), touched={"old/1": 40.0}), loads=(LOAD,),
        intervals=replace(ON, evictions_per_hour=0),
    )  # fmt: skip
    room.go_on(12.0)
    assert room.receipts == []
    room.go_on()
    assert room.receipt.victim_replica_id == "old/1"


@pytest.mark.parametrize(
    "why", ["busy", "unknown", "pinned", "used now", "priority", "younger than its minimum"]
)
def test_whom_no_wait_moves(why):
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 5000)
    changes = {
        "busy": {"watched": activity(router(old__1=1))},
        "unknown": {"watched": activity(router(age_s=30))},
        "pinned": {"models": (of_priority(0, pinned=True), NEW)},
        "used now": {"watched": activity(router(), touched={"old/1": 20.0})},
        "priority": {"models": (of_priority(1), NEW)},
        "younger than its minimum": {"models": (model("old", min_residency_s=9000.0), NEW)},
    }[why]
    room = Room(*changes.pop("models", ()), rows=(HELD, waits), **changes)
    room.step()
    assert room.receipts == []


def test_nobody_leaves_for_room_that_comes_free_by_itself():
    """An operator drains another replica anyhow: who waits will have that room."""
    going = replace(
        idle_one(ELSE, "n1", 1), wish=Wish.DRAIN, phase=Phase.DRAINING, reason="drained by operator"
    )
    room = Room(OLD, ELSE, NEW, nodes=[node("n1", 2)], rows=(HELD, going), watched=activity(router()))
    room.go_on(times=3)
    assert room.receipts == []
    assert room.rows["old/1"].wish is Wish.SERVE


def test_a_leader_that_has_not_heard_all_nodes_evicts_nobody_for_who_waited_under_the_one_before():
    waits = replica(NEW, 1, Phase.UNPLACEABLE, cause=Cause.ACTIVATION, since=NOW - 100)
    room = Room(
        nodes=[node("n1", 1), node("n2", 1)], rows=(HELD, waits), term_started=NOW - 10,
        words=[heard(node("n1", 1), usual_reports(node("n1", 1), (HELD,)))],
    )  # fmt: skip
    room.go_on()
    assert room.receipts == []


def test_nobody_leaves_for_the_one_too_many_that_a_rollout_starts():
    changed = model("new", profile("p", context_length=9), replicas=1, priority=1)
    before = replica(model("new", replicas=1), 1, Phase.READY, shard("new/1", "n1", 1))
    room = Room(
        OLD, changed, nodes=[node("n1", 2)], rows=(HELD, before), wanting=(), watched=activity(router())
    )
    room.go_on()
    assert room.rows["new/2"].phase is Phase.UNPLACEABLE, "the new one beside the old"
    assert room.receipts == []
