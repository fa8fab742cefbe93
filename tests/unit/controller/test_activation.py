"""What a waiting router is told, and how a measured start becomes an ETA."""

from dataclasses import replace

import pytest

from llmgw_controller.core.activation import (
    Pending,
    Ready,
    Refused,
    decide,
)
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.loads import eta
from llmgw_controller.core.plan import PutEvent
from llmgw_controller.core.rows import Cause, LoadRecord, Phase
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
    profile,
    replica,
    report,
    router,
    shard,
    snapshot,
)

ONE = model()
LOADS = tuple(LoadRecord(ONE.name, "p", "L4", float(seconds), 1.0) for seconds in (10, 20, 30, 40, 90))


def row(phase, **changes):
    parts = () if phase in (Phase.WANTED, Phase.UNPLACEABLE, Phase.FAILED) else (shard("m/1", "n1", 0),)
    return replica(ONE, 1, phase, *parts, **{"since": NOW - 5, "cause": Cause.ACTIVATION, **changes})


def told(rows, state=None, *, one=ONE, **changes):
    words = None
    if state is not None:
        reports = [report(each, part, state, progress=0.25) for each in rows for part in each.shards]
        words = [heard(node("n1"), reports)]
    return decide(snapshot([one], [node("n1")], rows, words, loads=LOADS, **changes), ONE.name, NOW)


CASES = {
    "ready": (told([row(Phase.READY)]), Ready()),
    "cold": (told([]), Pending("placing", None, 30.0)),
    "cold, nothing measured": (
        decide(snapshot([ONE], [node("n1")]), ONE.name, NOW),
        Pending("placing", None, None),
    ),
    "not on demand": (
        told([], one=replace(ONE, activate_on_demand=False)),
        Refused("not_activatable", "m is not started on demand", None),
    ),
    "unknown": (
        decide(snapshot([], []), ModelId("x"), NOW),
        Refused("model_not_found", "x is not in the catalog", None),
    ),
    "told to the agent": (told([row(Phase.RESERVED)]), Pending("placing", None, 25.0)),
    "fetching": (told([row(Phase.STARTING)], ShardState.FETCHING), Pending("fetching", 0.25, 25.0)),
    "loading, past the median": (
        told([row(Phase.STARTING, since=NOW - 35)], ShardState.LOADING),
        Pending("loading", 0.25, 55.0),
    ),
    "loading, longer than ever": (
        told([row(Phase.STARTING, since=NOW - 95)], ShardState.LOADING),
        Pending("loading", 0.25, None),
    ),
    "backing off": (told([row(Phase.BACKOFF, until=NOW + 7)]), Pending("restarting", None, 37.0)),
    "no room": (
        told([row(Phase.UNPLACEABLE, reason="full")]),
        Refused("no_capacity", "m: full", 30.0),
    ),
    "no room, but some is coming": (
        told(
            [
                row(Phase.UNPLACEABLE),
                replica(ONE, 2, Phase.STOPPING, shard("m/2", "n1", 0), since=NOW - 5),
            ]
        ),
        Pending("waiting_for_room", None, None),
    ),
    "no room among the nodes a new leader has heard; one is still to come": (
        decide(
            snapshot(
                [ONE],
                [node("n1"), node("n2")],
                [row(Phase.UNPLACEABLE, reason="full")],
                [heard(node("n1"), [])],
                term_started=NOW - 5,
            ),
            ONE.name,
            NOW,
        ),
        Pending("waiting_for_room", None, None),
    ),
    "given up": (
        told([row(Phase.FAILED, since=NOW - 100, reason="crashed")]),
        Refused("start_failed", "m/1: crashed", 200.0),
    ),
    "given up, configured: nobody knows until when": (
        told([row(Phase.FAILED, cause=Cause.CONFIGURATION, reason="crashed")]),
        Refused("start_failed", "m/1: crashed", None),
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_what_is_told(case):
    found, expected = CASES[case]
    assert found == expected


@pytest.mark.parametrize(
    ("seconds", "p50", "p90"),
    [([7], 7, 7), ([1, 2], 1, 2), (list(range(1, 11)), 5, 9), (list(range(1, 21)), 10, 18)],
)
def test_quantiles_are_of_what_was_seen(seconds, p50, p90):
    loads = [LoadRecord(ONE.name, "p", "L4", float(one), 1.0) for one in seconds]
    found = eta(loads, ONE.name, profile("p"))
    assert found is not None
    assert (found.p50_s, found.p90_s, found.samples) == (p50, p90, len(seconds))


def test_another_class_is_another_eta():
    assert eta(LOADS, ONE.name, profile("p", gpu_class="H100")) is None


def test_scale_to_zero_waits_for_idleness_and_a_request_starts_it_again():
    one = model(idle_after_s=600.0)
    stage = Stage(snapshot([one], [node("n1")], activations=ask(one), routers={"r1": member()}))

    def watch(seconds_ago):
        stage.snap = replace(stage.snap, activity=activity(router(), touched={"m/1": seconds_ago}))

    stage.step()
    stage.obey()
    watch(0)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    stage.jump(stage.now + 590)
    watch(590)
    stage.step(20)
    assert stage.rows["m/1"].phase is Phase.READY
    watch(610)
    stage.step()
    assert (stage.rows["m/1"].phase, stage.rows["m/1"].reason) == (Phase.DRAINING, "idle")

    # Somebody asks while it drains as idle: the engine is still there, and was told nothing.
    asked = replace(stage.snap.stored, activations=ask(one, asked=stage.now))
    stage.snap = replace(stage.snap, stored=asked)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    assert stage.snap.stored.activations == {}
    # As far as the map goes it is idle still; but what a router has sent it now may stand in no report yet.
    stage.step(16)
    assert stage.rows["m/1"].phase is Phase.READY
    # Nobody used it after all: it goes, and all acknowledge.
    stage.step()
    assert stage.rows["m/1"].phase is Phase.DRAINING
    stage.snap = replace(stage.snap, drained=frozenset({stage.rows["m/1"].endpoint_id}))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING
    # Somebody asks during the unload: that is new demand, and another engine (cases 18, 20).
    stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, activations=ask(one, asked=stage.now)))
    stage.step()
    assert stage.rows["m/2"].phase is Phase.RESERVED
    stage.obey()
    stage.step()
    assert stage.snap.stored.activations == {}


def test_a_failed_activation_is_answered_at_once_for_a_while_and_then_tried_again():
    stage = Stage(
        snapshot(
            [ONE], [node("n1")], [row(Phase.FAILED, since=NOW - 10, reason="crashed")], activations=ask(ONE)
        )
    )
    stage.step()
    assert stage.snap.stored.activations == {}
    assert stage.rows["m/1"].phase is Phase.FAILED
    stage.jump(NOW + 295)
    stage.step()
    assert stage.rows == {}


def test_room_that_comes_free_soon_after_a_refusal_is_taken():
    """Whoever was refused was told to come again in half a minute."""
    other = model("other", replicas=1)
    holder = replica(other, 1, Phase.READY, shard("other/1", "n1", 0))
    stage = Stage(snapshot([ONE, other], [node("n1", 1)], [holder], activations=ask(ONE)))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.UNPLACEABLE
    assert stage.snap.stored.activations == {}
    stage.catalog(ONE, replace(other, replicas=0))
    for _ in range(6):
        stage.obey()
        stage.step()
    assert stage.rows["m/1"].phase is Phase.READY


def test_an_operators_activation_that_waits_for_room_is_told_once():
    """A pass has several rounds, and each looks at all that is open."""
    kept = {ONE.name: replace(ask(ONE)[ONE.name], kept_until=NOW + 3600)}
    stage = Stage(snapshot([ONE], [node("n1", 0)], activations=kept))
    told = [one for one in stage.step().changes if isinstance(one, PutEvent)]
    assert [one.kind for one in told] == ["wanted", "unplaceable", "activation_waits"]
    for _ in range(3):
        assert not [one for one in stage.step().changes if isinstance(one, PutEvent)]


def test_room_that_nobody_knows_when_to_come_is_no_reason_to_wait():
    """Its agent is heard, was told to end it two minutes ago, and does nothing."""
    waits = row(Phase.UNPLACEABLE, reason="no room")

    def beside(ago_s: float):
        other = replica(model("other"), 1, Phase.STOPPING, shard("other/1", "n1", 0), since=NOW - ago_s)
        return told([waits, other], ShardState.STOPPING)

    assert beside(10.0) == Pending("waiting_for_room", None, None)
    assert isinstance(beside(120.0), Refused)
