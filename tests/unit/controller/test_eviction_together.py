"""Room that several must leave, or that several wait for: nobody else steals it."""

from dataclasses import replace

import pytest

from llmgw_controller.core.apply import apply
from llmgw_controller.core.catalog import spec_hash
from llmgw_controller.core.earmarks import places_after
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.plan import PutAttempt, Release, Reserve
from llmgw_controller.core.rows import AttemptRow, Cause, EvictionState, Phase, Wish
from llmgw_kit.ids import NodeId, ReplicaId
from tests.unit.controller.build import (
    NOW,
    activity,
    heard,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    usual_reports,
    weights_of,
)
from tests.unit.controller.room import ELSE, HELD, NEW, OLD, Room, idle_one

GANG = model("gang", profile("g", nodes=2, gpus_per_node=2, tensor_parallel=4), idle_after_s=None, priority=1)


def two_nodes() -> Room:
    """Each node has two GPUs, one of each held by an idle replica."""
    return Room(
        OLD, ELSE, GANG, nodes=[node("n1", fabrics=("ib",)), node("n2", fabrics=("ib",))],
        rows=(HELD, idle_one(ELSE, "n2", 0)), wanting=("gang",), watched=activity(router()),
    )  # fmt: skip


def test_a_gang_waits_for_all_exits_and_takes_the_room_in_one_plan():
    """The first engine to exit keeps its claims: what came free earlier could go to somebody else."""
    thief = model("thief", priority=9, replicas=2)
    room = two_nodes()
    room.step()
    assert {one.victim_replica_id for one in room.receipts} == {"old/1", "else/1"}
    room.catalog(OLD, ELSE, GANG, thief)
    room.acknowledge("old/1@1", "else/1@1")
    room.go_on()
    assert room.rows["thief/1"].phase is Phase.UNPLACEABLE, "the free GPUs are kept too"
    room.go_on()
    assert {room.rows[name].phase for name in ("old/1", "else/1")} == {Phase.STOPPING}
    room.tell(room.rows["old/1"], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    room.tell(room.rows["else/1"], ShardState.STOPPING)
    plan = room.step()
    assert not [one for one in plan.changes if isinstance(one, (Release, Reserve))]
    room.report()
    room.tell(room.rows["else/1"], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    plan = room.step()
    freed = [i for i, one in enumerate(plan.changes) if isinstance(one, Release)]
    taken = [i for i, one in enumerate(plan.changes) if isinstance(one, Reserve)]
    assert len(freed) == 2
    assert [plan.changes[i].replica.replica_id for i in taken] == ["gang/1"]
    assert max(freed) < min(taken)
    assert sum(len(part.device_ids) for part in room.rows["gang/1"].shards) == 4
    assert room.rows["thief/1"].phase is Phase.UNPLACEABLE


def test_a_new_leader_keeps_the_room_of_a_gang_until_it_has_heard_its_other_nodes():
    """Seed 200521: the victim's exit is heard first, and the node beside it a moment later."""
    thief = model("thief", replicas=2)
    nodes = [node("n1", fabrics=("ib",)), node("n2", fabrics=("ib",))]
    room = Room(OLD, GANG, nodes=nodes, wanting=("gang",), watched=activity(router()))
    room.step()
    room.through()
    assert room.rows["old/1"].phase is Phase.STOPPING
    room.catalog(OLD, GANG, thief)
    there = heard(nodes[0], usual_reports(nodes[0], (HELD,)), at=room.now)
    room.snap = replace(room.snap, term_started=room.now, heard={NodeId("n1"): there})
    room.tell(room.rows["old/1"], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    plan = room.step()
    assert not [one for one in plan.changes if isinstance(one, (Release, Reserve))]
    assert {row.phase for name, row in room.rows.items() if name.startswith("thief/")} == {Phase.WANTED}
    beside = heard(nodes[1], usual_reports(nodes[1], ()), at=room.now)
    room.snap = replace(room.snap, heard={**room.snap.heard, NodeId("n2"): beside})
    plan = room.step()
    taken = [one.replica.replica_id for one in plan.changes if isinstance(one, Reserve)]
    assert taken == ["gang/1"]


def test_a_gang_is_cancelled_as_a_whole_when_one_victim_is_used():
    room = two_nodes()
    room.step()
    room.acknowledge("old/1@1", "else/1@1")
    room.report(else__1=1)
    room.step()
    assert {one.state for one in room.receipts} == {EvictionState.CANCELLED}
    assert {room.rows[name].wish for name in ("old/1", "else/1")} == {Wish.SERVE}


def test_waiting_demands_of_one_model_are_served_together():
    pair = model("pair", replicas=2, idle_after_s=None)
    rows = (HELD, idle_one(ELSE, "n1", 1))
    room = Room(OLD, ELSE, pair, nodes=[node("n1", 2)], rows=rows, wanting=(), watched=activity(router()))
    room.step()
    assert {one.beneficiary_replica_id for one in room.receipts} == {"pair/1", "pair/2"}


def test_each_of_several_goes_where_its_own_victim_was():
    """Seed 10011: the victim of the first was gone, but the other's node, still held, would have been a
    better place; so it was told to wait for that, and a third, for whom no room was made, took its room."""
    first, second = model("first", idle_after_s=None), model("second", idle_after_s=None)
    rows = (idle_one(OLD, "n2", 0), idle_one(ELSE, "n1", 0))
    room = Room(
        OLD, ELSE, first, second, nodes=[node("n1", 1), node("n2", 1)], rows=rows,
        wanting=("first", "second"), watched=activity(router()),
    )  # fmt: skip
    room.step()
    owner = {one.victim_replica_id: str(one.beneficiary_replica_id) for one in room.receipts}
    assert set(owner) == {"old/1", "else/1"}
    for leaver, node_id in (("old/1", "n2"), ("else/1", "n1")):
        owed = {ReplicaId(owner[one]): frozenset({ReplicaId(one)}) for one in ("old/1", "else/1")}
        there = places_after(room.snap, owed, room.now)[ReplicaId(owner[leaver])]
        assert [part.node_id for part in there.shards] == [node_id]


def test_a_small_one_does_not_take_the_room_that_fits_a_large_one():
    """Seed 7 of `nobody is ever lost`: all victims of the large one had left; a small one, whose own was
    still there, was given a part of its node, and the rest went to a stranger."""
    wide = model("wide", profile("w", gpus_per_node=2), idle_after_s=None)
    thin = model("thin", idle_after_s=None)
    large = replace(idle_one(OLD, "n1", 0), shards=(shard("old/1", "n1", 0, 1),))
    stays = model("stays", replicas=1, pinned=True)
    beside = replica(stays, 1, Phase.READY, shard("stays/1", "n2", 1))
    room = Room(
        OLD, ELSE, wide, thin, stays, model("thief", replicas=1, priority=-9), nodes=[node("n1"), node("n2")],
        rows=(large, idle_one(ELSE, "n2", 0), beside), wanting=("wide", "thin"), watched=activity(router()),
    )  # fmt: skip
    room.say("n1", weights=(weights_of(thin),))
    room.step()
    wanted = {(one.victim_replica_id, str(one.beneficiary_replica_id)) for one in room.receipts}
    assert wanted == {("old/1", "wide/1"), ("else/1", "thin/1")}
    room.acknowledge("old/1@1", "else/1@1")
    room.go_on(times=2)
    room.tell(room.rows["old/1"], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    room.tell(room.rows["else/1"], ShardState.STOPPING)
    room.step()
    phases = {name: room.rows[name].phase for name in ("wide/1", "thin/1", "thief/1")}
    assert phases == {"wide/1": Phase.RESERVED, "thin/1": Phase.UNPLACEABLE, "thief/1": Phase.UNPLACEABLE}


def test_nobody_leaves_for_who_has_room_and_only_waits_until_its_profile_may_be_started():
    """Seed 10039: its room was free, its profile rested after the crash of a sibling; the receipt was closed
    as if it had not wanted the room, others took that, and one more was evicted for it."""
    room = Room(OLD, ELSE, NEW, nodes=[node("n1", 1), node("n2", 1)], rows=(HELD, idle_one(ELSE, "n2", 0)))
    room.step()
    victim = room.receipt.victim_replica_id
    room.acknowledge(f"{victim}@1")
    room.go_on(times=2)
    failed = AttemptRow(
        NEW.name, "p", "L4", spec_hash(NEW, NEW.profiles[0]), ReplicaId("new/2"), (NodeId("n9"),), "crashed",
        "crashed by signal 6", room.now,
    )  # fmt: skip
    room.snap = replace(room.snap, stored=apply(room.snap.stored, [PutAttempt(failed)]))
    room.tell(room.rows[victim], ShardState.EXITED, exit=Exit(0, None, "stopped", ""))
    room.step()
    assert room.rows["new/1"].phase is Phase.UNPLACEABLE
    assert room.rows["new/1"].reason == "other starts of profile p failed just now"
    assert room.receipt.state is EvictionState.DRAINING, "its room is kept, and nobody else leaves for it"
    room.later(30.0)
    room.report()
    room.step()
    assert room.rows["new/1"].phase is Phase.RESERVED
    assert room.receipt.state is EvictionState.DONE


@pytest.mark.parametrize(("ago_s", "evicted"), [(10.0, []), (60.0, ["old/1"])])
def test_room_that_should_have_come_free_long_ago_is_not_waited_for(ago_s, evicted):
    """Seeds 50005 and 50007: what leaves frees its devices by itself, so nobody was evicted; but its agent
    did nothing that it was told, and who waited did so for ever."""
    there = shard("else/1", "n2", 0)
    left = replica(ELSE, 1, Phase.STOPPING, there, since=NOW - ago_s, cause=Cause.ACTIVATION)
    room = Room(OLD, ELSE, NEW, nodes=[node("n1", 1), node("n2", 1)], rows=(HELD, left))
    room.step()
    assert [one.victim_replica_id for one in room.receipts] == evicted
