"""Draining a node: what is told is what the passes then do."""

from dataclasses import replace

import pytest
from hypothesis import given

from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import Rollout
from llmgw_controller.core.moving import Moving, drained, steps
from llmgw_controller.core.plan import PutNode
from llmgw_controller.core.rows import LoadRecord, Phase, Schedulability, Wish
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import NOW, Stage, model, node, profile, replica, shard, snapshot
from tests.unit.controller.worlds import fleets

N1 = NodeId("n1")


def told(snap, now=NOW):
    return {
        str(step.replica_id): (step.moving, step.text) for step in steps(snap, snap.stored.nodes[N1], now)
    }


def outcomes(snap):
    return {name: moving for name, (moving, _) in told(snap).items()}


def drain(snap) -> Stage:
    return Stage(drained(snap, snap.stored.nodes[N1]))


def test_its_successor_serves_before_it_drains() -> None:
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    load = LoadRecord(one.name, "p", "L4", 75.0, NOW - 9999)
    snap = snapshot([one], [node("n1"), node("n2")], [row], loads=(load,))
    text = "its successor starts on n2, ready in about 1 m 15 s; then it drains"
    assert told(snap) == {"m/1": (Moving.MOVES, text)}
    stage = drain(snap)
    stage.step()
    assert stage.rows["m/1"].wish is Wish.SERVE
    assert stage.rows["m/2"].shards[0].node_id == "n2"
    # Not before the new one serves.
    stage.step()
    assert stage.rows["m/1"].wish is Wish.SERVE
    stage.obey()
    stage.step()
    assert stage.rows["m/2"].phase is Phase.READY
    assert stage.rows["m/1"].phase is Phase.DRAINING


def test_without_room_it_stays_and_moves_as_soon_as_there_is_some() -> None:
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = snapshot([one], [node("n1")], [row])
    moving, text = told(snap)["m/1"]
    assert moving is Moving.STAYS
    assert "draining: 1" in text
    stage = drain(snap)
    for _ in range(5):
        stage.step()
        stage.obey()
    assert stage.rows["m/1"].phase is Phase.READY
    assert stage.rows["m/2"].phase is Phase.UNPLACEABLE
    # A node registers.
    late = snapshot([one], [node("n1"), node("n2")], [row])
    stage.snap = replace(
        stage.snap,
        stored=apply(stage.snap.stored, [PutNode(late.stored.nodes[NodeId("n2")])]),
        heard={**stage.snap.heard, NodeId("n2"): late.heard[NodeId("n2")]},
    )
    stage.jump(stage.now)
    for _ in range(5):
        stage.step()
        stage.obey()
    assert stage.rows["m/2"].phase is Phase.READY
    assert "m/1" not in stage.rows or stage.rows["m/1"].wish is not Wish.SERVE


def test_a_group_whose_other_node_is_needed_again_stops_first() -> None:
    gang = profile("p", nodes=2, gpus_per_node=2, tensor_parallel=4)
    one = model("m", gang, replicas=1)
    parts = [shard("m/1", f"n{n}", 0, 1, rank=n - 1) for n in (1, 2)]
    row = replica(one, 1, Phase.READY, *parts)
    snap = snapshot([one], [node(f"n{n}", 2, fabrics=("ib",)) for n in (1, 2, 3)], [row])
    assert outcomes(snap) == {"m/1": Moving.STOPS_FIRST}
    stage = drain(snap)
    for _ in range(8):
        stage.step()
        stage.obey()
    (left,) = [row for row in stage.rows.values() if row.wish is Wish.SERVE]
    assert left.phase is Phase.READY
    assert sorted(part.node_id for part in left.shards) == ["n2", "n3"]


@pytest.mark.parametrize(
    ("phase", "rollout", "expected"),
    [
        (Phase.READY, Rollout.STOP_FIRST, Moving.STOPS_FIRST),
        (Phase.STARTING, Rollout.SURGE, Moving.STOPS_FIRST),
        (Phase.DRAINING, Rollout.SURGE, Moving.LEAVES),
    ],
)
def test_what_need_not_or_must_not_wait_is_told(phase: Phase, rollout: Rollout, expected: Moving) -> None:
    one = model(replicas=1, rollout=rollout)
    row = replica(one, 1, phase, shard("m/1", "n1", 0))
    snap = snapshot([one], [node("n1"), node("n2")], [row])
    assert outcomes(snap) == {"m/1": expected}


def test_room_is_told_once_and_the_large_one_has_it() -> None:
    big = model("big", profile("p", gpus_per_node=2, tensor_parallel=2), replicas=1)
    small = model("small", replicas=1)
    rows = [
        replica(big, 1, Phase.READY, shard("big/1", "n1", 0, 1)),
        replica(small, 1, Phase.READY, shard("small/1", "n1", 2, port=20001)),
    ]
    snap = snapshot([big, small], [node("n1", 4), node("n2", 2)], rows)
    assert outcomes(snap) == {"big/1": Moving.MOVES, "small/1": Moving.STAYS}


def test_one_too_many_leaves_without_a_successor() -> None:
    one = model(replicas=1)
    rows = [
        replica(one, 1, Phase.READY, shard("m/1", "n1", 0)),
        replica(one, 2, Phase.READY, shard("m/2", "n2", 0)),
    ]
    snap = snapshot([one], [node("n1"), node("n2")], rows)
    assert outcomes(snap) == {"m/1": Moving.LEAVES}


@given(fleets())
def test_each_replica_on_a_node_has_one_step_and_none_moves_to_where_it_is(snap) -> None:
    for node_id, row in snap.stored.nodes.items():
        held = sorted(
            replica_id
            for replica_id, one in snap.stored.replicas.items()
            if any(part.node_id == node_id and not part.released for part in one.shards)
        )
        found = steps(snap, row, NOW)
        assert [step.replica_id for step in found] == held
        assert not any(node_id in step.text for step in found if step.moving is Moving.MOVES)


def test_uncordon_in_between_keeps_what_has_not_left() -> None:
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    stage = drain(snapshot([one], [node("n1"), node("n2")], [row]))
    stage.step()
    assert "m/2" in stage.rows
    back = replace(stage.snap.stored.nodes[N1], schedulability=Schedulability.SCHEDULABLE)
    stage.snap = replace(stage.snap, stored=apply(stage.snap.stored, [PutNode(back)]))
    for _ in range(4):
        stage.step()
        stage.obey()
    assert {name: row.phase for name, row in stage.rows.items()} == {"m/1": Phase.READY}
