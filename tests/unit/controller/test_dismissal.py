"""An operator lets a replica go: its row after, and what the operator is told."""

import pytest

from llmgw_controller.core.dismissal import dismiss
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.rows import Cause, Phase, Wish
from llmgw_controller.core.why import why
from tests.unit.controller.build import (
    NOW,
    activity,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
)

KEPT = model("m", replicas=2)
COLD = model("m")


def fleet(one, row, **changes):
    return snapshot([one], [node("n1")], [row], **changes)


@pytest.mark.parametrize(
    ("one", "phase", "wish", "cause", "becomes", "said"),
    [
        (KEPT, Phase.READY, Wish.DRAIN, Cause.CONFIGURATION, Wish.DRAIN,
         "m/1 drains: it takes nothing new and has 300 s to finish; then its 1 GPU is free; "
         "configuration keeps 2, so another is started where there is room"),
        (COLD, Phase.READY, Wish.DRAIN, Cause.ACTIVATION, Wish.DRAIN,
         "m/1 drains: it takes nothing new and has 300 s to finish; then its 1 GPU is free"),
        (COLD, Phase.READY, Wish.STOP, Cause.ACTIVATION, Wish.STOP,
         "m/1 stops now: what it has in flight may be cut short; then its 1 GPU is free"),
        (COLD, Phase.DRAINING, Wish.STOP, Cause.ACTIVATION, Wish.STOP,
         "m/1 stops now: what it has in flight may be cut short; then its 1 GPU is free"),
        # What serves nobody has nothing to finish: a drain is a stop.
        (COLD, Phase.STARTING, Wish.DRAIN, Cause.ACTIVATION, Wish.STOP,
         "m/1 stops now: it is starting and has nothing to finish; then its 1 GPU is free"),
    ],
)  # fmt: skip
def test_the_row_goes_one_way_and_the_operator_is_told_what_follows(one, phase, wish, cause, becomes, said):
    row = replica(one, 1, phase, shard("m/1", "n1", 0), cause=cause)
    found = dismiss(fleet(one, row), row, wish, NOW)
    assert found.row is not None
    assert (found.row.wish, found.row.phase, found.text) == (becomes, phase, said)
    assert found.row.reason == ("drained by operator" if wish is Wish.DRAIN else "stopped by operator")
    assert found.outcome == ("draining" if becomes is Wish.DRAIN else "stopping")
    assert (found.gpus, found.another) == (1, "another" in said)


@pytest.mark.parametrize(
    ("phase", "wish", "said"),
    [
        (Phase.DRAINING, Wish.DRAIN,
         "m/1 drains already, for 16 m 40 s; to end it now: llmgwctl replica stop m/1"),
        (Phase.STOPPING, Wish.DRAIN, "m/1 is leaving already (idle)"),
        (Phase.STOPPING, Wish.STOP, "m/1 is leaving already (idle)"),
    ],
)  # fmt: skip
def test_what_leaves_already_is_left_as_it_is(phase, wish, said):
    row = replica(KEPT, 1, phase, shard("m/1", "n1", 0), reason="idle")
    found = dismiss(fleet(KEPT, row), row, wish, NOW)
    assert (found.row, found.outcome, found.text, found.another) == (None, "unchanged", said, False)


def test_the_successor_of_one_that_drains_is_not_promised_twice():
    row = replica(KEPT, 1, Phase.DRAINING, shard("m/1", "n1", 0))
    found = dismiss(fleet(KEPT, row), row, Wish.STOP, NOW)
    assert (found.outcome, found.another) == ("stopping", False)


def test_more_than_wanted_are_not_replaced():
    one = model("m", replicas=1)
    rows = [replica(one, n, Phase.READY, shard(f"m/{n}", "n1", n - 1)) for n in (1, 2)]
    found = dismiss(snapshot([one], [node("n1")], rows), rows[0], Wish.DRAIN, NOW)
    assert not found.another


def test_the_gpus_of_a_silent_node_are_not_promised():
    row = replica(COLD, 1, Phase.READY, shard("m/1", "n1", 0), cause=Cause.ACTIVATION)
    found = dismiss(fleet(COLD, row, words=[heard(node("n1"), at=NOW - 60)]), row, Wish.STOP, NOW)
    assert found.text.endswith("is free (its node is silent: when it is heard again, or lost)")


def idle_and(big, nodes):
    """m/1 is kept by configuration, idle for hours, and `big` needs its GPU."""
    one = model("m", replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0), ready_since=NOW - 20_000)
    snap = snapshot(
        [one, big], nodes, [row],
        activity=activity(router(), touched={"m/1": 11_400}), routers={"r1": member()},
        term_started=NOW - 20_000,
    )  # fmt: skip
    return why(snap, verdicts(snap, NOW), big, NOW).profiles[0]


TWO = profile("two", gpus_per_node=2, tensor_parallel=2)


DRAIN = "llmgwctl replica drain m/1"


def test_why_names_no_drain_that_would_only_restart_the_replica():
    # Its successor would take the other GPU of n1 at once.
    told = idle_and(model("big", TWO), [node("n1")])
    assert told.fix == "llmgwctl model stop m"
    assert told.cheapest is not None
    assert told.cheapest.text.startswith(
        "stop m until it is started again: drained, it would be started first"
    )
    assert told.near[0].text == "1 of 2 free; m/1 holds 1, idle 3 h 10 m"
    # One that waits has the other GPU kept for it meanwhile.
    assert idle_and(model("big", TWO, replicas=1), [node("n1")]).fix == DRAIN


def test_why_names_a_drain_whose_successor_goes_elsewhere():
    assert idle_and(model("big", TWO), [node("n1"), node("n2", 1)]).fix == DRAIN


def test_of_two_that_wait_for_one_gpu_the_one_placed_first_gets_it():
    alone = [node("n1", 1)]
    small = profile("one")
    assert idle_and(model("big", small), alone).fix == "llmgwctl model stop m"  # It does not wait.
    assert idle_and(model("big", small, replicas=1), alone).fix == DRAIN
    behind = model("big", small, replicas=1, priority=-1)
    assert idle_and(behind, alone).fix == "llmgwctl model stop m"


def test_why_names_no_activation_that_is_refused():
    big = model("big", TWO, activate_on_demand=False)
    snap = snapshot([big], [node("n1")])
    assert why(snap, verdicts(snap, NOW), big, NOW).profiles[0].fix is None
