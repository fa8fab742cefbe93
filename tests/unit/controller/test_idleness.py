"""The six rules, one table each; what is not known is never idle."""

from dataclasses import replace

import pytest

from llmgw_controller.core.activity import Activity, Busy, Idle, Unknown
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.idleness import idle_replicas, may_leave, silent_members, verdict, verdicts
from llmgw_controller.core.rows import Cause, Phase, Wish
from llmgw_controller.core.state import Watched
from llmgw_controller.core.trouble import troubles
from llmgw_kit.ids import ModelId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    ask,
    heard,
    member,
    model,
    node,
    replica,
    report,
    router,
    shard,
    snapshot,
)

ONE = model(idle_after_s=600.0, min_residency_s=60.0)
ROW = replica(ONE, 1, Phase.READY, shard("m/1", "n1", 0), ready_since=NOW - 5000)
BOTH = {"r1": member("r1"), "r2": member("r2")}
TOUCHED = {"m/1": 700.0}


def judged(read, *, row=ROW, routers=BOTH, running=0, unknown=None, silent=False, adopted=False, **changes):
    said = report(
        row, row.shards[0], ShardState.SERVING, running=running, running_unknown=unknown, adopted=adopted
    )
    word = heard(node("n1"), [said], at=NOW - (60 if silent else 1))
    snap = snapshot([ONE], [node("n1")], [row], [word], activity=read, routers=routers, **changes)
    return verdict(snap, row, NOW)


FRESH = activity(router("r1"), router("r2"), touched=TOUCHED)

CASES = {
    "asked 700 s ago, all heard": (judged(FRESH), Idle(700.0, never_asked=False)),
    "never asked, watched since it was ready": (
        judged(activity(router("r1"), router("r2"))),
        Idle(5000.0, never_asked=True),
    ),
    "asked before the watch began: idle no longer than it was watched": (
        judged(activity(router("r1"), router("r2"), watching_since=500_000.0 - 90, touched={"m/1": 700})),
        Idle(90.0, never_asked=False),
    ),
    "never asked, watched for less than it is ready": (
        judged(activity(router("r1"), router("r2"), watching_since=500_000.0 - 90)),
        Idle(90.0, never_asked=True),
    ),
    "a time from before it was ready is no idleness of this one": (
        judged(FRESH, row=replace(ROW, ready_since=NOW - 30)),
        Idle(30.0, never_asked=False),
    ),
    "no Redis configured": (judged(Activity(None)), Unknown("redis_not_configured")),
    "Redis away": (judged(Activity(None, "redis_unreachable")), Unknown("redis_unreachable")),
    "Redis flushed": (
        judged(activity(router("r1"), router("r2"), watching_since=None, epoch=None)),
        Unknown("watch_restarted"),
    ),
    "flushed, one router has not sent its map again": (
        judged(activity(router("r1"), router("r2", epoch="old"), touched=TOUCHED)),
        Unknown("router_resending"),
    ),
    "flushed, all have sent theirs again": (
        judged(activity(router("r1", epoch="e2"), router("r2", epoch="e2"), touched=TOUCHED, epoch="e2")),
        Idle(700.0, never_asked=False),
    ),
    "a router vanished": (judged(activity(router("r1"), touched=TOUCHED)), Unknown("router_silent")),
    "a router is late": (
        judged(activity(router("r1"), router("r2", age_s=16), touched=TOUCHED)),
        Unknown("router_silent"),
    ),
    "a vanished router that said goodbye is no member": (
        judged(activity(router("r1"), touched=TOUCHED), routers={"r1": member("r1")}),
        Idle(700.0, never_asked=False),
    ),
    "a router restarted and its new life is not a member yet": (
        judged(activity(router("r1"), replace(router("r2"), incarnation="second life"), touched=TOUCHED)),
        Unknown("router_silent"),
    ),
    "a router crashed 40 s ago: that counts as an ask": (
        judged(FRESH, routers={"r1": member("r1"), "r2": member("r2", crashed_at=NOW - 40)}),
        Idle(40.0, never_asked=False),
    ),
    "a router that had crashed 40 s ago is no member any more: its lost word is lost all the same": (
        judged(FRESH, idle_floor=NOW - 40),
        Idle(40.0, never_asked=False),
    ),
    "a floor of long ago says nothing": (
        judged(FRESH, idle_floor=NOW - 4000),
        Idle(700.0, never_asked=False),
    ),
    "never asked since a router was forgotten 20 s ago": (
        judged(activity(router("r1"), router("r2")), idle_floor=NOW - 20),
        Idle(20.0, never_asked=True),
    ),
    "in flight at one router": (judged(activity(router("r1", m__1=2), router("r2"))), Busy(2)),
    "in flight, though another router is silent": (judged(activity(router("r1", m__1=2))), Busy(2)),
    "in flight at a router no leader has met": (
        judged(activity(router("r1"), router("r2"), router("r9", m__1=1))),
        Busy(1),
    ),
    "a silent router's old counts do not make it busy": (
        judged(activity(router("r1"), router("r2", age_s=60, m__1=4), touched=TOUCHED)),
        Unknown("router_silent"),
    ),
    "the engine runs what no router sent": (judged(FRESH, running=1), Busy(None, direct_traffic=True)),
    "the engine runs what a router has just let go of: two readings of one request": (
        judged(activity(router("r1"), router("r2"), touched={"m/1": 4.0}), running=1),
        Busy(None, direct_traffic=False),
    ),
    "the engine ran what no router sent, 30 s ago": (
        judged(FRESH, watched=Watched(ran_at={ROW.endpoint_id: NOW - 30})),
        Idle(30.0, never_asked=False),
    ),
    "an earlier engine of this replica ran, and that is over": (
        judged(FRESH, watched=Watched(ran_at={"m/1@0": NOW - 30})),
        Idle(700.0, never_asked=False),
    ),
    "the engine runs, and a router that may have sent it is silent": (
        judged(activity(router("r1"), touched=TOUCHED), running=1),
        Busy(None, direct_traffic=False),
    ),
    "the engine runs, Redis away": (
        judged(Activity(None, "redis_unreachable"), running=1),
        Busy(None, direct_traffic=False),
    ),
    "the gauge cannot be read": (
        judged(FRESH, running=None, unknown="HTTP 500"),
        Unknown("engine_gauge_unreadable"),
    ),
    "an engine without a gauge": (judged(FRESH, running=None), Idle(700.0, never_asked=False)),
    "a new leader has looked at the gauge for 20 s: what ran there before it cannot know": (
        judged(FRESH, term_started=NOW - 20),
        Idle(20.0, never_asked=False),
    ),
    "a new leader, never asked through a router": (
        judged(activity(router("r1"), router("r2")), term_started=NOW - 20),
        Idle(20.0, never_asked=True),
    ),
    "a new leader, an engine without a gauge: nobody ever saw more than the routers' map": (
        judged(FRESH, running=None, term_started=NOW - 20),
        Idle(700.0, never_asked=False),
    ),
    "a new leader and a new agent, which has not read the gauge yet": (
        judged(FRESH, running=None, adopted=True, term_started=NOW - 20),
        Idle(20.0, never_asked=False),
    ),
    "its node is silent": (judged(FRESH, silent=True), Unknown("node_silent")),
    "no router at all, watched": (judged(activity(), routers={}), Idle(5000.0, never_asked=True)),
}


@pytest.mark.parametrize("case", list(CASES))
def test_the_rules(case):
    found, expected = CASES[case]
    assert found == expected


def test_a_change_of_leader_restarts_the_clock_of_idleness_and_no_more():
    """Scale to zero comes later by as much, and comes."""
    snap = snapshot(
        [ONE],
        [node("n1")],
        [replace(ROW, cause=Cause.ACTIVATION)],
        activity=FRESH,
        routers=BOTH,
        term_started=NOW - 1,
    )
    heir = Stage(snap)
    began = heir.now - 1
    while heir.rows["m/1"].wish is Wish.SERVE:
        heir.step()
        assert heir.now - began < 700, "it never goes"
    assert heir.now - began >= 600


@pytest.mark.parametrize("skew_s", [-600.0, 600.0, 86_400.0])
def test_clocks_that_differ_by_minutes_change_nothing(skew_s):
    """Redis's clock and the leader's are never compared, and no router's wall clock comes in at all."""
    assert judged(_shifted(FRESH, skew_s)) == judged(FRESH) == Idle(700.0, never_asked=False)
    silent = activity(router("r1"), router("r2", age_s=16), touched=TOUCHED)
    assert judged(_shifted(silent, skew_s)) == Unknown("router_silent")


def _shifted(watched, by_s):
    found = watched.map
    assert found is not None and found.watching_since is not None
    moved = replace(
        found,
        now=found.now + by_s,
        watching_since=found.watching_since + by_s,
        touched={name: at + by_s for name, at in found.touched.items()},
        routers={name: replace(one, at=one.at + by_s) for name, one in found.routers.items()},
    )
    return Activity(moved)


def test_a_shard_not_heard_in_this_term_is_unknown():
    snap = snapshot([ONE], [node("n1")], [ROW], [], activity=FRESH, routers=BOTH, term_started=NOW - 2)
    assert verdict(snap, ROW, NOW) == Unknown("shard_not_heard")


def test_only_what_can_be_asked_is_judged():
    rows = [
        replica(ONE, number, phase, shard(f"m/{number}", "n1", number))
        for number, phase in enumerate(Phase)
        if phase is not Phase.STOPPED
    ]
    found = verdicts(snapshot([ONE], [node("n1", 12)], rows, activity=FRESH), NOW).by_replica
    assert {row.phase for row in rows if row.replica_id in found} == {Phase.READY, Phase.DRAINING}


LEAVES = {
    "idle long enough": ({}, {}, {}, True),
    "idle not long enough": ({"idle_after_s": 701.0}, {}, {}, False),
    "never lets go": ({"idle_after_s": None}, {}, {}, False),
    "pinned": ({"pinned": True}, {}, {}, False),
    "residency not over": ({"min_residency_s": 5001.0}, {}, {}, False),
    "somebody is held for it": ({}, {}, {"held": {ModelId("m"): 1}}, False),
    "an activation is open": ({}, {}, {"activations": ask(ONE)}, False),
    "draining already": ({}, {"phase": Phase.DRAINING}, {}, False),
    "a drain was taken back a moment ago": ({}, {"until": NOW + 1}, {}, False),
    "a drain was taken back long ago": ({}, {"until": NOW}, {}, True),
}


@pytest.mark.parametrize("case", list(LEAVES))
def test_what_may_leave_unasked(case):
    of_model, of_row, of_snapshot, leaves = LEAVES[case]
    one = replace(ONE, **of_model)
    row = replace(ROW, cause=Cause.ACTIVATION, **of_row)
    snap = snapshot([one], [node("n1")], [row], activity=FRESH, routers=BOTH, **of_snapshot)
    assert may_leave(snap, row, one, verdicts(snap, NOW), NOW) is leaves


@pytest.mark.parametrize(
    ("watched", "may"), [(FRESH, True), (Activity(None), False), (activity(router("r1", m__1=1)), False)]
)
def test_only_idle_replicas_are_pointed_at(watched, may):
    snap = snapshot([ONE], [node("n1")], [ROW], activity=watched, routers=BOTH)
    assert bool(idle_replicas(snap, verdicts(snap, NOW))) is may
    pinned = replace(snap, catalog=replace(snap.catalog, models={ONE.name: replace(ONE, pinned=True)}))
    assert not idle_replicas(pinned, verdicts(pinned, NOW))


def test_the_status_names_who_is_missing_and_what_to_type():
    routers = {name: member(name) for name in ("r1", "r2", "r3", "r4", "r5")}
    restarted = replace(router("r2"), incarnation="second life")
    read = activity(router("r1"), restarted, router("r3", age_s=30), touched=TOUCHED)
    snap = snapshot([ONE], [node("n1")], [ROW], activity=read, routers=routers)
    assert silent_members(snap) == ("r2", "r3", "r4", "r5")
    told = [
        one for one in troubles(snap, rooms(snap, NOW), verdicts(snap, NOW), NOW) if one.subject == "idleness"
    ]
    assert [(one.text, one.fix) for one in told] == [
        (
            "idleness of 1 replica unknown: a member router is not heard (r2, r3, r4 and 1 more)",
            "llmgwctl router list",
        )
    ]
