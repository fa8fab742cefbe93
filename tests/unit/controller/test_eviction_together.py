"""Room that several must leave, or that several wait for: nobody else steals it."""

from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.plan import Release, Reserve
from llmgw_controller.core.rows import EvictionState, Phase, Wish
from tests.unit.controller.build import activity, model, node, profile, router
from tests.unit.controller.room import ELSE, HELD, OLD, Room, idle_one

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
