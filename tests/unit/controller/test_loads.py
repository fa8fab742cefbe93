"""Measured starts: their parts, and an ETA of those that are alike."""

from dataclasses import replace

import pytest

from llmgw_controller.core.activation import cold_eta_s, starting_eta_s
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.loads import Eta, eta, measured
from llmgw_controller.core.rows import LoadRecord, Phase
from llmgw_controller.core.state import Watched
from llmgw_controller.core.watching import watch
from llmgw_kit.ids import DeviceId, ModelId, NodeId
from tests.unit.controller.build import (
    NOW,
    TERM_STARTED,
    heard,
    model,
    node,
    profile,
    replica,
    report,
    shard,
    snapshot,
    weights_of,
)

WIDE = profile(nodes=2, gpus_per_node=1, tensor_parallel=2)
ONE = model("m", WIDE)
PARTS = (shard("m/1", "n1", 0), shard("m/1", "n2", 0, rank=1))
ROW = replica(ONE, 1, Phase.STARTING, *PARTS, since=NOW - 90)
NODES = [node("n1"), node("n2")]


def started(first, second, *, row=ROW, **changes):
    words = [
        heard(one, [report(row, part, ShardState.SERVING, **said)])
        for one, part, said in zip(NODES, PARTS, (first, second), strict=True)
    ]
    return measured(snapshot([ONE], NODES, [row], words, **changes), row, NOW)


def test_the_parts_are_the_slowest_shards():
    found = started(
        {
            "fetch_s": 40.0, "load_s": 30.0, "warm_up_s": 2.0, "engine_version": "0.9",
            "memory_used_bytes": ((DeviceId("a"), 7), (DeviceId("b"), 9)),
        },
        {"fetch_s": 10.0, "load_s": 45.0, "warm_up_s": 1.0, "engine_version": "0.9"},
        watched=Watched(held_before={"m/1@1": False}),
    )  # fmt: skip
    assert found == LoadRecord(
        ModelId("m"), "p", "L4", 90.0, NOW, fetch_s=40.0, load_s=45.0, warm_up_s=2.0, weights_here=False,
        memory_bytes=9, engine_version="0.9", spec_hash=ROW.spec_hash,
    )  # fmt: skip


def test_what_one_shard_does_not_say_is_unknown_of_the_whole():
    found = started({"fetch_s": 40.0, "load_s": 30.0, "engine_version": "0.9"}, {"load_s": 45.0})
    assert found is not None
    assert (found.seconds, found.fetch_s, found.load_s, found.warm_up_s) == (90.0, None, 45.0, None)
    assert (found.weights_here, found.memory_bytes, found.engine_version) == (None, None, None)


@pytest.mark.parametrize(
    ("second", "seconds"), [({"load_s": 45.0, "fetch_s": 20.0, "warm_up_s": 1.5}, 66.5), ({}, None)]
)
def test_a_start_that_another_leader_began_is_told_by_its_agents_or_by_nobody(second, seconds):
    early = replace(ROW, since=TERM_STARTED - 50)
    found = started({"load_s": 30.0, "fetch_s": 5.0, "warm_up_s": 2.0}, second, row=early)
    assert (found.seconds if found else None) == seconds


def load(seconds, *, here=None, fetch_s=None):
    return LoadRecord(ModelId("m"), "p", "L4", seconds, NOW, fetch_s=fetch_s, weights_here=here)


THERE = [load(20.0, here=True), load(22.0, here=True)]
FETCHED = [load(300.0, here=False, fetch_s=279.0), load(310.0, here=False)]
OLD = [load(100.0)]


@pytest.mark.parametrize(
    ("loads", "here", "expected"),
    [
        (THERE + FETCHED, True, Eta(21.0, 22.0, 3)),
        (THERE + FETCHED, False, Eta(300.0, 310.0, 2)),
        (THERE + FETCHED, None, Eta(22.0, 310.0, 4)),
        (THERE, False, None),
        (FETCHED[1:], True, None),
        (OLD, True, Eta(100.0, 100.0, 1)),
        (OLD, False, Eta(100.0, 100.0, 1)),
        ([], None, None),
    ],
    ids=[
        "on the node: a start that fetched says what it took without", "to be fetched", "either",
        "never fetched: unknown, not quick", "no parts: unknown", "of an earlier release: counts for both",
        "the same, to be fetched", "nothing measured",
    ],
)  # fmt: skip
def test_an_eta_is_made_of_starts_that_are_alike(loads, here, expected):
    assert eta(loads, ModelId("m"), WIDE, here=here) == expected


@pytest.mark.parametrize(("holding", "expected"), [((), 300.0), (("n1",), 300.0), (("n1", "n2"), 21.0)])
def test_a_cold_start_depends_on_where_the_weights_are(holding, expected):
    words = [heard(one, weights=(weights_of(ONE),) if one.node_id in holding else ()) for one in NODES]
    snap = snapshot([ONE], NODES, [], words, loads=tuple(THERE + FETCHED))
    assert cold_eta_s(snap, ONE) == expected


def test_weights_that_are_half_there_are_not_there():
    words = [heard(one, weights=(replace(weights_of(ONE), complete=one.node_id == "n1"),)) for one in NODES]
    assert cold_eta_s(snapshot([ONE], NODES, [], words, loads=tuple(THERE + FETCHED)), ONE) == 300.0


def test_a_start_under_way_keeps_the_eta_it_began_with_although_its_weights_arrive():
    def word(name, *, complete):
        part = PARTS[0] if name == "n1" else PARTS[1]
        weights = (replace(weights_of(ONE), complete=complete),)
        return heard(node(name), [report(ROW, part, ShardState.LOADING)], weights=weights)

    loads = tuple(THERE + FETCHED)
    before = snapshot(
        [ONE], NODES, [ROW], [word("n1", complete=False), word("n2", complete=True)], loads=loads
    )
    seen = watch(Watched(), before, NOW)
    assert seen.held_before == {"m/1@1": False}
    after = snapshot(
        [ONE], NODES, [ROW], [word("n1", complete=True), word("n2", complete=True)], loads=loads, watched=seen
    )
    assert watch(seen, after, NOW + 2).held_before == {"m/1@1": False}
    assert starting_eta_s(after, ROW, NOW) == 300.0 - 90.0
    ready = replace(ROW, phase=Phase.READY)
    assert watch(seen, snapshot([ONE], NODES, [ready]), NOW + 4).held_before == {}


def test_a_model_without_weights_has_one_kind_of_start():
    bare = model("m", WIDE, weights=None)
    assert cold_eta_s(snapshot([bare], NODES, loads=tuple(OLD)), bare) == 100.0
    assert watch(Watched(), snapshot([bare], NODES, [ROW]), NOW).held_before == {}
    assert (
        NodeId("n1")
        in snapshot([ONE], NODES, [], [heard(NODES[0], weights=(weights_of(ONE),))]).holders[("m", "v1")]
    )
