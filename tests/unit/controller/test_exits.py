"""When a shard counts as gone, by what its agent said and what it had been told before."""

from dataclasses import replace

import pytest

from llmgw_controller.core.exits import VANISHED, exit_of
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.rows import Phase
from tests.unit.controller.build import NOW, heard, model, node, replica, report, shard, snapshot

M = model(replicas=1)
N1 = node("n1")
PLACED = (Phase.RESERVED, Phase.STARTING, Phase.READY, Phase.STOPPING, Phase.BACKOFF)


def seen(phase: Phase, *, answered, since: float = NOW - 100, connected: bool = True, listed=()):
    row = replica(M, 1, phase, shard("m/1", "n1", 0), since=since)
    reports = [report(row, row.shards[0], state) for state in listed]
    named = None if answered is None else frozenset(row.shards[0].shard_id for _ in range(answered))
    word = heard(N1, reports, answered=named, connected=connected)
    return exit_of(snapshot([M], [N1], [row], [word]), row, row.shards[0])


@pytest.mark.parametrize("phase", PLACED)
def test_silence_about_a_shard_says_nothing_before_the_list_that_names_it_was_applied(phase):
    """However long it lasts: the start may lie unread, and its engine come up where another has begun."""
    assert seen(phase, answered=0, since=NOW - 5000) is None
    assert seen(phase, answered=1, since=NOW - 1) == VANISHED
    # What was once answered stays so when the stream has ended.
    assert seen(phase, answered=1, connected=False) == VANISHED


@pytest.mark.parametrize("phase", PLACED)
def test_of_an_agent_of_an_earlier_release_time_is_all_there_is(phase):
    assert seen(phase, answered=None, since=NOW - 5) is None
    assert seen(phase, answered=None, connected=False) is None
    assert seen(phase, answered=None) == (None if phase is Phase.RESERVED else VANISHED)


@pytest.mark.parametrize("answered", [None, 0, 1])
def test_what_it_says_of_a_shard_comes_first(answered):
    assert seen(Phase.READY, answered=answered, listed=[ShardState.SERVING]) is None
    boom = Exit(1, None, "crashed", "boom")
    assert seen(Phase.READY, answered=answered, listed=[ShardState.EXITED]) == boom


def test_a_shard_on_a_node_that_was_not_heard_may_run():
    row = replica(M, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = replace(snapshot([M], [N1], [row]), heard={})
    assert exit_of(snap, row, row.shards[0]) is None
