"""Where very many wait, a pass looks for some of them, the first by rank always, and everybody has a turn."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import PutReplica
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.turns import FIRST, LOOKED_MOST, start_of, turn_of
from llmgw_controller.core.view import fleet_view
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import NOW, after, model, node, profile, replica, snapshot

MANY = 3 * LOOKED_MOST


def crowd(count, **changes):
    """So many models that wait, each for a node of its own that nobody has."""
    models = [
        model(f"m{number:03}", profile(node_ids=(NodeId(f"x{number}"),)), replicas=1, **changes)
        for number in range(count)
    ]
    return snapshot(models, [node("a")], [replica(one, 1, Phase.WANTED) for one in models])


def looked_for(snap, now):
    """Whom a pass has answered."""
    return {
        change.replica.model
        for change in reconcile(snap, now).changes
        if isinstance(change, PutReplica) and change.replica.phase is Phase.UNPLACEABLE
    }


def test_few_are_all_looked_for():
    snap = crowd(LOOKED_MOST)
    assert len(looked_for(snap, NOW)) == LOOKED_MOST
    assert not [one for one in fleet_view(snap, verdicts(snap, NOW), NOW).trouble if "turn" in one.kind]


def test_of_very_many_a_pass_looks_for_some_and_the_first_by_rank_are_among_them():
    snap = crowd(MANY)
    for later in range(0, 20, 2):
        found = looked_for(snap, NOW + later)
        assert len(found) == LOOKED_MOST
        assert {f"m{number:03}" for number in range(FIRST)} <= found


def test_a_pass_after_it_at_the_same_moment_changes_nothing():
    snap = crowd(MANY)
    assert reconcile(after(snap, reconcile(snap, NOW)), NOW).changes == ()


def test_who_waits_for_the_same_is_looked_for_together():
    models = [model(f"m{number:03}", replicas=1) for number in range(MANY)]
    snap = snapshot(models, [], [replica(one, 1, Phase.WANTED) for one in models])
    assert len(looked_for(snap, NOW)) == MANY


def test_a_status_says_so():
    snap = crowd(MANY)
    (told,) = [
        one for one in fleet_view(snap, verdicts(snap, NOW), NOW).trouble if one.kind == "placed_in_turns"
    ]
    assert f"ask for {MANY} different things" in told.text
    assert f"looks for {LOOKED_MOST}" in told.text


@settings(max_examples=300)
@given(
    count=st.integers(LOOKED_MOST + 1, 600),
    step_s=st.integers(1, 20),
    begin=st.integers(0, 2_000_000_000),
)
def test_everybody_has_a_turn_whatever_the_rhythm_of_the_passes(count, step_s, begin):
    turn = turn_of(range(count), lambda one: one, begin)
    left = set(range(count))
    # A few times as many as a perfect round would need: no rhythm keeps anybody out.
    for number in range(12 * turn.passes + 24):
        left -= set(turn_of(range(count), lambda one: one, begin + number * step_s).now)
        if not left:
            return
    pytest.fail(f"{len(left)} of {count} were never looked for")


def test_a_round_begins_within_the_circle():
    assert {start_of(7, now) for now in range(100)} == set(range(7))
