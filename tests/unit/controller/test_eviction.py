"""Eviction to make room, step by step: what is asked for before the stop, and how it ends.

Cases of real failures are named by their number.
"""

from dataclasses import replace

from llmgw_controller.core.activation import Pending, decide
from llmgw_controller.core.apply import apply
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.plan import PutReplica, Release, Reserve
from llmgw_controller.core.proposals import proposals
from llmgw_controller.core.replica import with_wish
from llmgw_controller.core.rows import EvictionState, Phase, Wish
from llmgw_controller.core.state import EvictionPolicy
from llmgw_kit.ids import ModelId, NodeId
from tests.unit.controller.build import heard, node, usual_reports
from tests.unit.controller.room import HELD, LOAD, ON, Room


def test_an_idle_replica_makes_room_and_the_claims_go_over_in_one_plan():
    room = Room()
    room.step()
    victim = room.rows["old/1"]
    assert (victim.wish, victim.phase, victim.revocable) == (Wish.DRAIN, Phase.DRAINING, True)
    assert victim.reason == "evicted for new/1"
    assert room.receipt.state is EvictionState.DRAINING
    assert any("router r1: report" in line for line in room.receipt.evidence)
    room.through()
    assert room.rows["old/1"].phase is Phase.STOPPING
    room.obey()
    plan = room.step()
    freed = [
        i for i, one in enumerate(plan.changes) if isinstance(one, Release) and one.replica_id == "old/1"
    ]
    taken = [i for i, one in enumerate(plan.changes) if isinstance(one, Reserve)]
    assert freed and taken and freed[0] < taken[0], "released and reserved by one transaction"
    assert room.rows["new/1"].shards[0].device_ids == HELD.shards[0].device_ids
    assert "old/1" not in room.rows
    assert room.receipt.state is EvictionState.DONE
    assert room.receipt.freed_at is not None
    assert "made room for new/1" in room.events("evicted")[0].text


def test_acknowledged_is_not_enough_while_no_report_is_newer():
    room = Room()
    room.step()
    room.acknowledge()
    for _ in range(4):
        room.step()
    assert room.receipt.acknowledged_at is not None
    assert room.rows["old/1"].phase is Phase.DRAINING, "its last report is from before the mark"
    room.go_on()
    assert room.rows["old/1"].phase is Phase.STOPPING


def test_a_victim_whose_engine_ends_by_itself_leaves_by_itself():
    room = Room()
    room.step()
    room.report()
    room.tell(room.rows["old/1"], ShardState.EXITED)
    room.step()
    assert room.receipt.state is EvictionState.CANCELLED
    assert "a shard exited" in room.receipt.text
    assert room.rows["new/1"].phase is Phase.RESERVED, "the room is free, and who waits takes it"


def test_an_operator_who_stops_the_victim_has_the_last_word():
    room = Room()
    room.step()
    stopped = with_wish(room.rows["old/1"], Wish.STOP, because="stopped by operator")
    room.snap = replace(room.snap, stored=apply(room.snap.stored, [PutReplica(stopped)]))
    room.go_on()
    room.obey()
    room.go_on()
    assert room.rows["new/1"].phase is Phase.RESERVED


def test_case_20_a_request_for_the_victim_is_new_demand_and_does_not_revive_it():
    room = Room()
    room.step()
    assert isinstance(decide(room.snap, ModelId("new"), room.now), Pending), "told to wait, not refused"
    room.wanting.add("old")
    room.snap = replace(room.snap, held={ModelId("old"): 3})
    room.go_on()
    assert isinstance(decide(room.snap, ModelId("old"), room.now), Pending), "held, for room may come"
    assert room.rows["old/1"].phase is Phase.DRAINING
    room.through()
    room.obey()
    room.go_on()
    assert room.rows["new/1"].phase is Phase.RESERVED, "the pending load is not kept waiting"
    others = [row for name, row in room.rows.items() if name.startswith("old/")]
    assert [row.phase for row in others] == [Phase.UNPLACEABLE], "queued"
    assert room.receipt.regretted_at is not None, "and it is regretted"


def test_an_engine_that_does_not_exit_holds_up_nobody_for_ever():
    """Its deadline; the outcome is an event."""
    room = Room()
    room.step()
    room.through()
    for _ in range(80):
        room.tell(room.rows["old/1"], ShardState.STOPPING)
        room.go_on()
    assert room.receipt.state is EvictionState.FAILED
    assert "the exit of old/1 is not seen" in room.events("eviction_failed")[0].text


def test_a_new_leader_goes_on_with_it_once_it_has_learnt():
    room = Room()
    room.step()
    room.acknowledge()
    room.go_on()
    started = room.now
    room.snap = replace(room.snap, term_started=started, drained=frozenset(), heard={})
    room.go_on()
    assert room.receipt.state is EvictionState.DRAINING, "judged by nobody while it learns"
    room.snap = replace(
        room.snap,
        heard={NodeId("n1"): heard(node("n1", 1), usual_reports(node("n1", 1), (HELD,)), at=room.now)},
    )
    room.go_on()
    assert room.rows["old/1"].phase is Phase.DRAINING, "routers tell a new leader everything anew"
    room.through()
    assert room.rows["old/1"].phase is Phase.STOPPING


def test_suggest_shows_and_does_nothing():
    room = Room(intervals=replace(ON, eviction=EvictionPolicy.SUGGEST), loads=(replace(LOAD, seconds=75.0),))
    room.step()
    (one,) = proposals(room.snap, verdicts(room.snap, room.now), room.now)
    assert one.beneficiary.replica_id == "new/1"
    assert [row.replica_id for row in one.victims] == ["old/1"]
    assert one.reload_s == 75.0
    assert "old/1 (1 GPU, idle 2 h 00 m) leaves for new/1" in one.text
    assert room.receipts == []
