"""Drains: who must say what before a replica stops, and what becomes of one that nobody needs to stop."""

from dataclasses import replace

import pytest

from llmgw_controller.core.dismissal import dismiss
from llmgw_controller.core.draft import Draft
from llmgw_controller.core.drains import DrainEnd, end_of_drain, quiet_since
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import Drain, PutEvent
from llmgw_controller.core.replica import InvalidTransition
from llmgw_controller.core.roster import IDLE, cancel_drain, let_go
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Cause, DeploymentRow, Phase, Wish
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    ask,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    report,
    router,
    shard,
    snapshot,
)

ONE = model("m", profile(drain_timeout_s=60.0), replicas=1)
R1 = {"r1": member()}


def draining(reason="replaced", *, waited=0.0, revocable=False, **changes):
    return replica(
        ONE, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - waited, reason=reason, revocable=revocable,
        cause=Cause.ACTIVATION if revocable else Cause.CONFIGURATION, **changes,
    )  # fmt: skip


def stage_of(row, *, running=0, **changes):
    stage = Stage(snapshot([ONE], [node("n1")], [row], routers=R1, **changes))
    stage.tell(row, ShardState.SERVING if row.revocable else ShardState.DRAINING, running=running)
    return stage


def kinds(plan):
    return [change.kind for change in plan.changes if isinstance(change, PutEvent)]


# --- a stop that somebody wished


def test_two_readings_of_zero_need_a_beat_between_them():
    """Any message moves the time at which a node was heard; only a beat's gauge is read anew."""
    row = draining(waited=20)
    stage = stage_of(row)
    stage.step(seconds=1.0)
    first = stage.rows["m/1"].quiet_at
    assert first is not None
    for _ in range(3):
        stage.say("n1")
        stage.step(seconds=1.0)
        assert stage.rows["m/1"].phase is Phase.DRAINING
        assert stage.rows["m/1"].quiet_at == first, "kept in the row: it outlives the pass and the leader"
    stage.jump(NOW + 6)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING
    assert "the engines said twice that nothing runs" in " ".join(stage.rows["m/1"].story)


def test_a_request_between_the_readings_makes_the_first_one_void():
    row = draining(waited=20)
    stage = stage_of(row)
    stage.step(seconds=3.0)
    stage.tell(row, ShardState.DRAINING, running=1)
    stage.step(seconds=3.0)
    assert stage.rows["m/1"].quiet_at is None
    stage.tell(row, ShardState.DRAINING, running=0)
    stage.step(seconds=3.0)
    assert stage.rows["m/1"].phase is Phase.DRAINING
    stage.jump(stage.now + 3)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING


def test_a_reading_from_before_the_drain_says_nothing():
    row = draining()
    snap = snapshot(
        [ONE],
        [node("n1")],
        [row],
        [heard(node("n1"), [report(row, row.shards[0], ShardState.SERVING)], at=NOW - 1)],
    )
    assert quiet_since(snap, row) is None
    assert end_of_drain(replace(snap, stored=replace(snap.stored, routers={})), row, NOW) is None


@pytest.mark.parametrize(
    ("head", "rest", "quiet"),
    [
        ({"running": 0}, {"running": None}, True),
        ({"running": 0}, {"running": None, "running_unknown": "HTTP 500"}, False),
        ({"running": None}, {"running": None}, False),
        ({"running": 0}, {"running": 1}, False),
    ],
    ids=["only the head has a gauge", "one cannot be read", "no gauge at all", "a rank runs something"],
)
def test_of_a_group_the_head_speaks(head, rest, quiet):
    wide = model("m", profile(nodes=2))
    parts = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
    row = replica(wide, 1, Phase.DRAINING, *parts, since=NOW - 20)
    words = [
        heard(node(name), [report(row, part, ShardState.DRAINING, **said)])
        for name, part, said in zip(("n1", "n2"), parts, (head, rest), strict=True)
    ]
    snap = snapshot([wide], [node("n1"), node("n2")], [row], words)
    assert (quiet_since(snap, row) is not None) is quiet


@pytest.mark.parametrize(
    ("drained", "running", "end"),
    [
        (True, 0, DrainEnd.DRAINED),
        (True, None, DrainEnd.DRAINED),
        (True, 2, None),
        (False, 0, None),
    ],
    ids=[
        "router and engine say so",
        "an engine without a gauge",
        "the engine runs direct traffic",
        "no router's word",
    ],
)
def test_router_and_engine_both_have_to_say_so(drained, running, end):
    """Cases 12 and 13: counted at both ends, before anything is stopped."""
    row = draining(waited=10)
    words = [heard(node("n1"), [report(row, row.shards[0], ShardState.DRAINING, running=running)])]
    snap = snapshot(
        [ONE], [node("n1")], [row], words, routers=R1,
        drained=frozenset({row.endpoint_id} if drained else ()),
    )  # fmt: skip
    assert end_of_drain(snap, row, NOW) is end


def test_a_stuck_request_ends_at_the_profiles_deadline_and_it_is_told():
    """Case 14."""
    row = draining(waited=59)
    stage = stage_of(row, running=1)
    stage.step(seconds=2.0)
    assert stage.rows["m/1"].phase is Phase.DRAINING
    stage.tell(row, ShardState.DRAINING, running=1)
    plan = stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING
    assert "drain_cut" in kinds(plan)


def test_a_new_leader_gives_routers_time_and_not_the_deadline():
    """Routers tell it everything anew; what the profile grants has gone on all the while."""
    row = draining(waited=59, quiet_at=NOW - 30)
    stage = stage_of(row, term_started=NOW - 2)
    stage.step(seconds=2.0)
    assert stage.rows["m/1"].phase is not Phase.STOPPING
    stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING


# --- a drain that only the controller wants


def idle_stage(**changes):
    row = replica(ONE, 1, Phase.READY, shard("m/1", "n1", 0), cause=Cause.ACTIVATION, ready_since=NOW - 5000)
    one = replace(ONE, replicas=0, idle_after_s=600.0)
    watched = activity(router(), touched={"m/1": 700.0})
    stage = Stage(snapshot([one], [node("n1")], [row], routers=R1, activity=watched, **changes))
    stage.step()
    row = stage.rows["m/1"]
    assert (row.wish, row.phase, row.reason, row.revocable) == (Wish.DRAIN, Phase.DRAINING, IDLE, True)
    return stage


def test_its_engine_is_not_told_and_no_router_uses_it():
    stage = idle_stage()
    assert not [command for command in stage.plans[0].commands if isinstance(command, Drain)]
    table = routes(stage.snap, stage.now)
    assert [row.draining for row in table.endpoints.values()] == [True]
    for _ in range(5):
        plan = stage.step()
        assert not [command for command in plan.commands if isinstance(command, Drain)]
    stage.obey()
    assert [word.state for word in stage.snap.heard["n1"].shards.values()] == [ShardState.SERVING]


def test_it_is_taken_back_when_a_router_does_not_acknowledge_and_rests():
    stage = idle_stage()
    taken_at = stage.now
    while stage.rows["m/1"].phase is Phase.DRAINING:
        plan = stage.step()
        assert stage.now - taken_at < 40
    row = stage.rows["m/1"]
    assert (row.wish, row.phase, row.reason, row.revocable) == (Wish.SERVE, Phase.READY, None, False)
    assert row.ready_since == NOW - 5000, "it was up all the while"
    assert kinds(plan) == ["drain_cancelled"]
    assert [one.draining for one in routes(stage.snap, stage.now).endpoints.values()] == [False]
    for _ in range(100):
        stage.step()
        assert stage.rows["m/1"].phase is Phase.READY
    stage.jump(stage.now + 110)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.DRAINING, "it rested for long enough"


def test_it_stops_once_every_router_acknowledged_and_then_there_is_no_way_back():
    stage = idle_stage()
    stage.snap = replace(stage.snap, drained=frozenset({stage.rows["m/1"].endpoint_id}))
    stage.step()
    row = stage.rows["m/1"]
    assert (row.phase, row.wish, row.revocable) == (Phase.STOPPING, Wish.STOP, False)
    with pytest.raises(InvalidTransition, match="a drain taken back in stopping under wish stop"):
        cancel_drain(Draft(stage.snap, NOW, verdicts(stage.snap, NOW)), row, because="too late")


def test_a_leader_that_learns_stops_none():
    stage = idle_stage()
    row = stage.rows["m/1"]
    drained = frozenset({row.endpoint_id})
    unheard = {**stage.snap.stored.nodes, "n9": node("n9")}
    stored = replace(stage.snap.stored, nodes=unheard)
    snap = replace(stage.snap, drained=drained, stored=stored, term_started=stage.now - 5)
    assert end_of_drain(snap, row, stage.now) is None
    assert end_of_drain(replace(snap, term_started=1.0), row, stage.now) is DrainEnd.DRAINED


@pytest.mark.parametrize("how", ["activation", "held", "in flight", "direct traffic", "pinned"])
def test_whoever_asks_meanwhile_gets_it_back(how):
    """Cases 18 and 20: new demand meets the engine that is still there."""
    stage = idle_stage()
    row = stage.rows["m/1"]
    if how == "activation":
        stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, activations=ask(ONE)))
    elif how == "held":
        stage.snap = replace(stage.snap, held={ONE.name: 1})
    elif how == "in flight":
        stage.snap = replace(stage.snap, activity=activity(router(m__1=1)))
    elif how == "pinned":
        wished = {ONE.name: DeploymentRow(ONE.name, stopped=False, pinned=True, changed_at=NOW)}
        stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, deployments=wished))
    else:
        stage.tell(row, ShardState.SERVING, running=1)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    assert list(stage.rows) == ["m/1"], "and no second one is started"


def test_what_makes_room_for_others_is_not_called_back_by_its_own_demand():
    """Case 20: a victim is not revived while somebody waits for its memory. Who chose it may undo it."""
    row = replica(ONE, 1, Phase.READY, shard("m/1", "n1", 0), cause=Cause.ACTIVATION, ready_since=NOW - 5000)
    one = replace(ONE, replicas=0)
    snap = snapshot(
        [one], [node("n1")], [row], routers=R1, activity=activity(router(), touched={"m/1": 700.0})
    )
    draft = Draft(snap, NOW, verdicts(snap, NOW))
    let_go(draft, row, because="evicted for big", revocable=True)
    stage = Stage(draft.snapshot)
    stage.step()
    stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, activations=ask(one)))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.DRAINING
    draft = Draft(stage.snap, stage.now, verdicts(stage.snap, stage.now))
    cancel_drain(draft, stage.rows["m/1"], because="nobody waits for the room any more")
    assert draft.row(row.replica_id).phase is Phase.READY


def test_an_operators_drain_makes_it_firm():
    stage = idle_stage()
    found = dismiss(stage.snap, stage.rows["m/1"], Wish.DRAIN, stage.now)
    assert found.row is not None
    assert (found.outcome, found.row.revocable, found.row.reason) == (
        "draining",
        False,
        "drained by operator",
    )
    stage.snap = replace(
        stage.snap, stored=replace(stage.snap.stored, replicas={found.row.replica_id: found.row})
    )
    stage.snap = replace(stage.snap, held={ONE.name: 1})
    stage.jump(stage.now + 6)
    plan = stage.step()
    assert stage.rows["m/1"].phase is Phase.DRAINING, "demand does not call it back"
    assert [type(command) for command in plan.commands if isinstance(command, Drain)] == [Drain]
    again = dismiss(stage.snap, stage.rows["m/1"], Wish.DRAIN, stage.now)
    assert again.outcome == "unchanged"


@pytest.mark.parametrize("phase", [Phase.READY, Phase.DRAINING])
def test_a_firm_drain_is_not_taken_back(phase):
    row = replace(draining(), phase=phase, wish=Wish.DRAIN)
    snap = snapshot([ONE], [node("n1")], [row])
    with pytest.raises(InvalidTransition):
        cancel_drain(Draft(snap, NOW, verdicts(snap, NOW)), row, because="changed my mind")
