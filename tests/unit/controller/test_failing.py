"""Failed starts: who is to blame, and how long who waits."""

from dataclasses import replace

import pytest

from llmgw_controller.core.backoff import delay_s
from llmgw_controller.core.blame import BLAME, Blame, blame_of
from llmgw_controller.core.failing import resting_nodes
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.rows import Phase
from llmgw_controller.core.state import Intervals
from llmgw_kit.ids import ReplicaId
from tests.unit.controller.attempts import ONE, end, fleet, where
from tests.unit.controller.build import Stage, model, node, snapshot

FOLLOWS = {
    Blame.NOBODY: (0, False, False),
    Blame.SUPPLY: (0, True, False),
    Blame.NODE: (1, True, True),
    Blame.START: (1, True, True),
}


@pytest.mark.parametrize("reason", sorted(BLAME))
def test_what_follows_from_each_exit(reason):
    """Counted, waited for, kept: as the table of blame says, for every word of it."""
    stage = fleet(ONE)
    stage.step()
    row = end(stage, how=Exit(None, None, reason, "told"))
    counted, waits, is_kept = FOLLOWS[BLAME[reason]]
    assert row.failures == counted
    assert (row.phase is Phase.BACKOFF) is waits
    assert (row.phase is Phase.RESERVED) is not waits, "nobody's fault starts again at once"
    assert bool(stage.snap.stored.attempts) is is_kept


def test_every_word_of_agents_and_of_our_own_has_its_verdict_and_an_unknown_one_is_the_starts():
    known = {
        "port_taken", "weights_failed", "refused", "launch_failed", "crashed", "never_ready", "stopped",
        "silence", "orphan", "absent", "rebooted", "vanished", "unknown", "node_lost",
        "stopping_by_itself", "restarted_by_itself",
    }  # fmt: skip
    assert known <= set(BLAME)
    assert blame_of("a word of a later release") is Blame.START


def test_a_supply_that_fails_is_asked_for_for_ever_and_costs_no_chance():
    stage = fleet(ONE)
    for _ in range(12):
        stage.step()
        assert stage.rows["m/1"].phase is Phase.RESERVED
        row = end(stage, how=Exit(None, None, "weights_failed", "the mirror does not answer"))
        assert (row.phase, row.failures) == (Phase.BACKOFF, 0)
        assert 32 <= row.until - row.since <= 40
        stage.jump(row.until)


def test_after_a_failure_on_a_node_the_replica_prefers_others_until_it_has_rested():
    stage = fleet(ONE, "n1 n2")
    stage.step()
    assert where(stage.rows["m/1"]) == "n1"
    row = end(stage)
    stage.jump(row.until)
    stage.step()
    assert where(stage.rows["m/1"]) == "n2"
    rests = Intervals()
    assert resting_nodes(stage.snap.stored, row.replica_id, stage.now, rests) == {"n1"}
    assert resting_nodes(stage.snap.stored, ReplicaId("m/2"), stage.now, rests) == frozenset(), "only for it"
    assert resting_nodes(stage.snap.stored, row.replica_id, row.since + 20.1, rests) == frozenset()


def test_where_only_the_node_it_failed_on_is_free_it_goes_there_again():
    stage = fleet(ONE, "n1")
    stage.step()
    row = end(stage)
    assert row.until - row.since <= 5
    stage.jump(row.until)
    stage.step()
    assert (where(stage.rows["m/1"]), stage.rows["m/1"].group_epoch) == ("n1", 2)


def test_a_new_leader_waits_as_the_old_one_would_have():
    """All of it is in the store: nothing of the judgement is lost with a controller."""
    stage = fleet(ONE, "n1 n2")
    stage.step()
    row = end(stage)
    heir = Stage(replace(stage.snap, term_started=stage.now), stage.now)
    heir.step(0)
    assert (heir.rows["m/1"].phase, heir.rows["m/1"].until) == (Phase.BACKOFF, row.until)
    heir.jump(row.until)
    heir.step()
    assert where(heir.rows["m/1"]) == "n2"


def test_delays_double_and_are_spread_by_name_and_not_by_chance():
    rules = Intervals()
    plain = [delay_s("m/1", n, rules) for n in range(1, 9)]
    assert plain == [delay_s("m/1", n, rules) for n in range(1, 9)]
    for n, wait in enumerate(plain):
        full = min(300.0, 5.0 * 2**n)
        assert 0.8 * full <= wait <= full
    assert len({delay_s(f"m/{n}", 1, rules) for n in range(50)}) == 50
    assert delay_s("m/1", 10**9, rules) <= 300


def test_case_7_a_stop_that_is_not_seen_frees_nothing_and_nothing_starts_on_its_devices():
    stage = Stage(snapshot([ONE, model("b", replicas=1)], [node("n1", 1)]))
    stage.step(0)
    (first,) = (row for row in stage.rows.values() if row.shards)
    stage.obey(ShardState.LOADING)
    stage.step(0)
    stage.tell(stage.rows[first.replica_id], ShardState.STOPPING)
    stage.step(0)
    for _ in range(5):
        stage.jump(stage.now + 60)
        stage.step(0)
        assert stage.rows[first.replica_id].holds_devices
        assert sum(bool(row.shards) for row in stage.rows.values()) == 1
