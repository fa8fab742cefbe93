"""What is found once, of rows or of a snapshot, is true after any change, whether kept or found anew."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmgw_controller.core.activity import Idle
from llmgw_controller.core.apply import apply
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.heard import DeviceReport, NodeHeard
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.idleness import verdicts, verdicts_again
from llmgw_controller.core.placement import memo_of
from llmgw_controller.core.proposals import SUGGESTED_MOST, proposals
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import LoadRecord, Phase, Stored
from llmgw_controller.core.state import EvictionPolicy, Intervals
from llmgw_controller.core.view import fleet_view
from llmgw_kit.ids import ModelId
from tests.unit.controller.build import (
    GIB,
    NOW,
    activity,
    heard,
    model,
    node,
    profile,
    replica,
    shard,
    snapshot,
)
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


@given(fleets(), st.data())
def test_the_next_pass_decides_the_same_whatever_was_found_before_it(snap, data):
    """What one snapshot found serves the next: after beats, other memory, another catalog, other rows."""
    for policy in (EvictionPolicy.ON, EvictionPolicy.SUGGEST):
        snap = replace(snap, intervals=replace(snap.intervals, eviction=policy))
        plan = reconcile(snap, NOW)
        rows = apply(snap.stored, plan.changes)
        heard = {
            name: replace(word, heard_at=NOW, devices=data.draw(st.sampled_from([word.devices, less(word)])))
            for name, word in snap.heard.items()
        }
        models = {
            name: replace(one, priority=data.draw(st.sampled_from([one.priority, one.priority + 1])))
            for name, one in snap.catalog.models.items()
        }
        catalog = data.draw(st.sampled_from([snap.catalog, replace(snap.catalog, models=models)]))
        snap = replace(snap, stored=rows, heard=heard, catalog=catalog)
        anew = replace(snap, found={})
        assert reconcile(snap, NOW + 1) == reconcile(anew, NOW + 1)
        assert fleet_view(snap, verdicts(snap, NOW + 1), NOW + 1) == fleet_view(
            anew, verdicts(anew, NOW + 1), NOW + 1
        )
        assert routes(snap, NOW + 1) == routes(anew, NOW + 1)


def less(word: NodeHeard) -> tuple[DeviceReport, ...]:
    """Its devices, with half of their memory used by strangers."""
    return tuple(
        replace(
            one, foreign_used_bytes=None if one.memory_total_bytes is None else one.memory_total_bytes // 2
        )
        for one in word.devices
    )


def test_a_beat_alone_moves_no_room():
    snap = snapshot([], [node("a")], words=[heard(node("a"))])
    before = rooms(snap, NOW)
    beaten = {name: replace(word, heard_at=NOW + 1) for name, word in snap.heard.items()}
    assert rooms(replace(snap, heard=beaten), NOW + 1) is before


def test_what_was_looked_up_serves_until_models_sizes_or_measures_are_others():
    snap = snapshot([model()], [node("a")], words=[heard(node("a"))])
    kept = memo_of(snap, rooms(snap, NOW))
    beaten = {name: replace(word, heard_at=NOW + 1) for name, word in snap.heard.items()}
    assert memo_of(replace(snap, heard=beaten), rooms(snap, NOW)) is kept
    smaller = {name: replace(word, devices=less(word)) for name, word in snap.heard.items()}
    load = LoadRecord(ModelId("m"), "p", "L4", 9.0, NOW, memory_bytes=GIB, spec_hash="s")
    for other in (
        replace(snap, heard=smaller),
        replace(snap, catalog=replace(snap.catalog)),
        replace(snap, stored=replace(snap.stored, loads=(load,))),
    ):
        kept = memo_of(snap, rooms(snap, NOW))
        assert memo_of(other, rooms(other, NOW)) is not kept


def test_learning_ends_when_the_last_node_is_heard_whatever_was_found_before():
    waits = snapshot([], [node("a"), node("b")], words=[heard(node("a"))], term_started=NOW - 1)
    assert is_learning(waits, NOW)
    assert not is_learning(replace(waits, heard={**waits.heard, node("b").node_id: heard(node("b"))}), NOW)
    gone = {name: row for name, row in waits.stored.nodes.items() if name == "a"}
    assert not is_learning(replace(waits, stored=replace(waits.stored, nodes=gone)), NOW)
    assert is_learning(waits, NOW)


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
