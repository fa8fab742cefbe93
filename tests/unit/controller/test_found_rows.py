"""What is found once, of rows or of a snapshot, is true after any change, whether kept or found anew."""

from dataclasses import replace

from hypothesis import given

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.apply import apply
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.idleness import verdicts, verdicts_again
from llmgw_controller.core.proposals import SUGGESTED_MOST, proposals
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.rows import Phase, Stored
from llmgw_controller.core.state import EvictionPolicy, Intervals
from tests.unit.controller.build import NOW, activity, model, node, profile, replica, shard, snapshot
from tests.unit.controller.worlds import fleets


def found(stored: Stored) -> tuple[object, ...]:
    return stored.sorted_replicas, stored.by_model, stored.by_node, stored.stones


@given(fleets())
def test_what_is_carried_over_is_what_would_be_found(snap):
    stored = replace(snap.stored)
    for change in reconcile(snap, NOW).changes:
        found(stored)  # So that there is something to carry over.
        stored = apply(stored, (change,))
        assert found(stored) == found(replace(stored))


@given(fleets())
def test_rooms_that_are_kept_are_those_that_would_be_found(snap):
    for change in reconcile(snap, NOW).changes:
        rooms(snap, NOW)  # So that there is something to keep.
        snap = replace(snap, stored=apply(snap.stored, (change,)))
        assert rooms(snap, NOW) == rooms(replace(snap, found={}), NOW)


@given(fleets())
def test_rooms_that_are_kept_follow_time_and_what_is_heard(snap):
    rooms(snap, NOW)
    for later in (NOW + 10, NOW + 1000):
        assert rooms(snap, later) == rooms(replace(snap, found={}), later)
    for node_id in snap.heard:
        quiet = replace(snap, heard={name: word for name, word in snap.heard.items() if name != node_id})
        assert rooms(quiet, NOW) == rooms(replace(quiet, found={}), NOW)


@given(fleets())
def test_verdicts_that_are_kept_are_those_that_would_be_found(snap):
    judged, known = snap.stored, verdicts(snap, NOW)
    for change in reconcile(snap, NOW).changes:
        snap = replace(snap, stored=apply(snap.stored, (change,)))
        known = verdicts_again(snap, judged, known, NOW)
        judged = snap.stored
        assert known == verdicts(replace(snap, found={}), NOW)


@given(fleets())
def test_a_pass_decides_the_same_whatever_was_found_before_it(snap):
    first = reconcile(snap, NOW)
    assert reconcile(snap, NOW) == first
    assert reconcile(replace(snap, found={}), NOW) == first


def test_a_room_that_nothing_moved_is_the_very_same():
    """Passes ask for all rooms many times."""
    one = model()
    snap = snapshot([one], [node("a"), node("b")], [replica(one, 1, Phase.READY, shard("m/1", "a", 0))])
    before = rooms(snap, NOW)
    assert rooms(replace(snap), NOW) is before
    cordoned = {**snap.stored.nodes, node("a").node_id: replace(node("a"), pool="other")}
    after = rooms(replace(snap, stored=replace(snap.stored, nodes=cordoned)), NOW)
    assert after["b"] is before["b"]
    assert after["a"] is not before["a"]


def test_of_many_that_wait_a_status_suggests_for_the_first():
    """Each suggestion costs a search: a hundred that wait must not keep a status from its answer."""
    asked = [model(f"w{number:03}", profile(gpus_per_node=2, tensor_parallel=2), priority=1, replicas=1)
             for number in range(100)]  # fmt: skip
    held = [model(f"m{number}") for number in range(6)]
    nodes = [node(f"n{number}") for number in range(6)]
    rows = [replica(one, 1, Phase.READY, shard(f"{one.name}/1", f"n{number}", 0, 1))
            for number, one in enumerate(held)]  # fmt: skip
    waiting = [replace(replica(one, 1, Phase.UNPLACEABLE), reason="no room") for one in asked]
    snap = snapshot([*asked, *held], nodes, [*rows, *waiting], activity=activity(),
                    intervals=Intervals(eviction=EvictionPolicy.SUGGEST))  # fmt: skip
    found = verdicts(snap, NOW)
    assert all(isinstance(one, Idle) for one in found.by_replica.values())
    told = proposals(snap, found, NOW)
    assert [one.beneficiary.model for one in told] == [one.name for one in asked[:SUGGESTED_MOST]]
