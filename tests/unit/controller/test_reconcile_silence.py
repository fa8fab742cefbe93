"""Nodes that are silent, lost or back, and leaders that are new or slept."""

from dataclasses import replace

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Cause, Phase, Wish
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import NOW, Stage, ask, heard, model, node, replica, shard, snapshot
from tests.unit.controller.stages import ready_stage


def test_silence_frees_nothing_and_loss_moves_the_replica():
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node(name) for name in ("n1", "n2", "n3")], [row]))
    stage.silence("n1")
    stage.step(20)
    assert routes(stage.snap, stage.now).endpoints == {}, "routed around"
    plan = stage.step(270)
    assert plan.changes == ()
    assert stage.rows["m/1"].holds_devices
    stage.step(20)
    stage.step()
    moved = stage.rows["m/1"]
    assert (moved.phase, moved.shards[0].node_id, moved.group_epoch) == (Phase.RESERVED, "n2", 2)
    assert stage.snap.stored.nodes[NodeId("n1")].lost_at is not None
    assert [stone.shard_id for stone in stage.snap.stored.tombstones] == ["m/1.1.0"]


def test_a_node_back_from_silence_keeps_its_replica():
    """Case 1: nothing was stamped on the replica, so nothing stale can be left of the silence."""
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node(name) for name in ("n1", "n2", "n3")], [row]))
    stage.silence("n1")
    stage.step(200)
    stage.step(0)
    stage._silent = set()
    stage.say("n1")
    plan = stage.step()
    assert plan.changes == ()
    assert "m/1@1" in routes(stage.snap, stage.now).endpoints


def test_a_node_back_from_loss_takes_no_work_until_its_old_engines_are_seen_to_exit():
    """Case 3."""
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node(name) for name in ("n1", "n2", "n3")], [row]))
    stage.silence("n1")
    stage.step(310)
    stage.step()
    stage._silent = set()
    stage.tell(row, ShardState.SERVING)  # The old engine lives on.
    stage.step()
    assert stage.snap.stored.nodes[NodeId("n1")].lost_at is not None
    assert [stone.shard_id for stone in stage.snap.stored.tombstones] == ["m/1.1.0"]
    assert routes(stage.snap, stage.now).endpoints == {}, "the old copy is never routed to again"
    stage.tell(row, ShardState.EXITED)
    stage.step()
    assert stage.snap.stored.nodes[NodeId("n1")].lost_at is None
    assert stage.snap.stored.tombstones == ()


def test_mass_silence_holds_loss_back():
    """Case 2."""
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node(name) for name in ("n1", "n2", "n3")], [row]))
    stage.silence("n1")
    stage.silence("n2")
    stage.step(4000)
    plan = stage.step()
    assert plan.changes == ()


def test_while_all_replicas_are_out_of_reach_demand_starts_one_more_and_the_original_wins():
    one = model()
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0), cause=Cause.ACTIVATION)
    stage = Stage(snapshot([one], [node(name) for name in ("n1", "n2", "n3")], [row]))
    stage.silence("n1")
    stage.step(20)
    stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, activations=ask(one, asked=stage.now)))
    stage.step(0)
    assert stage.rows["m/2"].phase is Phase.RESERVED
    stage._silent = set()
    stage.say("n1")
    stage.step()
    assert stage.rows["m/1"].wish is Wish.SERVE
    assert stage.rows["m/2"].wish is Wish.STOP


def test_a_new_leader_removes_nothing_while_it_learns():
    one = model(replicas=2)
    rows = [replica(one, number, Phase.READY, shard(f"m/{number}", f"n{number}", 0)) for number in (1, 2)]
    nodes = [node("n1"), node("n2")]
    words = [heard(nodes[0], [], at=NOW)]
    stage = Stage(snapshot([one], nodes, rows, words, term_started=NOW - 1))
    stage.obey()
    plan = stage.step()
    assert plan.changes == ()
    assert set(routes(stage.snap, stage.now).endpoints) == {"m/1@1", "m/2@1"}
    stage.now = NOW + 31
    stage.say("n1")
    assert set(routes(stage.snap, stage.now).endpoints) == {"m/1@1"}


def test_a_leader_that_slept_blames_nobody_for_its_own_silence():
    """Case 2 of the control plane's: a hiccup of ours must not mark all nodes, nor empty the routes."""
    one = model(replicas=1)
    stage = ready_stage(one)
    stage.silence("n1")
    stage.step(60)
    assert routes(stage.snap, stage.now).endpoints == {}
    slept = replace(stage.snap, awake_since=stage.now - 1)
    assert "m/1@1" in routes(slept, stage.now).endpoints
    assert routes(slept, stage.now + 20).endpoints == {}, "and then counts as usual"
