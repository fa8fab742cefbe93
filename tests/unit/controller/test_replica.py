"""The state machine over its whole space, not samples of it."""

import itertools
from dataclasses import replace

import pytest

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.replica import (
    PHASE_NEXT,
    STORY_LINES,
    WISH_NEXT,
    WISH_OF_PHASE,
    InvalidTransition,
    is_routable,
    is_unreachable,
    with_phase,
    with_wish,
)
from llmgw_controller.core.rows import Phase, Wish
from tests.unit.controller.build import NOW, heard, model, node, replica, report, shard, snapshot

ONE = model()
EVERY = list(itertools.product(Phase, Wish, Phase))


@pytest.mark.parametrize(("before", "wish", "after"), EVERY)
def test_every_pair_of_phases_under_every_wish(before, wish, after):
    row = replace(replica(ONE, 1, before), wish=wish)
    allowed = after in PHASE_NEXT[before] and wish is WISH_OF_PHASE.get(after, Wish.SERVE)
    if not allowed:
        with pytest.raises(InvalidTransition, match=f"m/1: {before.value} -> {after.value}"):
            with_phase(row, after, now=NOW, because="test")
        return
    moved = with_phase(row, after, now=NOW, because="test", reason="why")
    assert (moved.phase, moved.since, moved.reason) == (after, NOW, "why")
    assert moved.story[-1] == f"{before.value} -> {after.value}: test"
    if after is Phase.READY:
        assert moved.ready_since == NOW
    elif after is not Phase.DRAINING:
        assert moved.ready_since is None


def test_every_phase_is_reached_and_only_stopped_is_an_end():
    reached = {after for nexts in PHASE_NEXT.values() for after in nexts}
    assert reached == set(Phase)
    assert [phase for phase in Phase if not PHASE_NEXT[phase]] == [Phase.STOPPED]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Wish, Wish)))
def test_a_wish_goes_one_way(before, after):
    row = replace(replica(ONE), wish=before)
    if after in WISH_NEXT[before]:
        assert with_wish(row, after, because="x").wish is after
    else:
        with pytest.raises(InvalidTransition):
            with_wish(row, after, because="x")
    order = list(Wish)
    assert (after in WISH_NEXT[before]) is (order.index(after) > order.index(before))


@pytest.mark.parametrize("after", [Phase.WANTED, Phase.STOPPED])
def test_devices_are_never_forgotten(after):
    before = Phase.BACKOFF if after is Phase.WANTED else Phase.STOPPING
    row = replica(ONE, 1, before, shard("m/1", "n1", 0))
    with pytest.raises(InvalidTransition, match="while devices are held"):
        with_phase(row, after, now=NOW, because="test")
    free = replace(row, shards=tuple(replace(part, released=True) for part in row.shards))
    assert with_phase(free, after, now=NOW, because="test").shards == ()


def test_exactly_one_point_of_the_space_is_routable():
    """Phases x wishes x (no word, or every report at a fresh or a stale time)."""
    part = shard("m/1", "n1", 0)
    routable = []
    for phase, wish in itertools.product(Phase, Wish):
        row = replace(replica(ONE, 1, phase, part), wish=wish)
        words = [("unheard", None, None)]
        words += [(state, age, state) for state in (None, *ShardState) for age in (1.0, 16.0)]
        for name, age, state in words:
            word = []
            if age is not None:
                reports = [report(row, part, state)] if state else []
                word = [heard(node("n1"), reports, at=NOW - age)]
            snap = snapshot([ONE], [node("n1")], [row], word)
            if is_routable(row, snap, NOW):
                routable.append((phase, wish, name, age))
    assert routable == [(Phase.READY, Wish.SERVE, ShardState.SERVING, 1.0)]


def test_a_gang_is_unreachable_as_soon_as_one_node_is():
    parts = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
    row = replica(ONE, 1, Phase.READY, *parts)
    nodes = [node("n1"), node("n2")]
    for ages, expected in [((1, 1), False), ((1, 16), True), ((16, 16), True)]:
        words = [
            heard(one, [report(row, part, ShardState.SERVING)], at=NOW - age)
            for one, part, age in zip(nodes, parts, ages, strict=True)
        ]
        snap = snapshot([ONE], nodes, [row], words)
        assert is_unreachable(row, snap, NOW) is expected
        assert is_routable(row, snap, NOW) is not expected


def test_the_story_is_kept_short():
    row = replica(ONE, 1, Phase.BACKOFF)
    for _ in range(3 * STORY_LINES):
        row = with_phase(replace(row, phase=Phase.BACKOFF), Phase.WANTED, now=NOW, because="again")
    assert len(row.story) == STORY_LINES
