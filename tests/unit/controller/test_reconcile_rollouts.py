"""Replacing what runs: by a new spec, with and without room, and because its node is emptied."""

from dataclasses import replace

from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Phase, Schedulability
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import heard, model, node, profile
from tests.unit.controller.stages import ready_stage


def test_a_rollout_starts_the_new_beside_the_old_and_then_drains_it():
    one = model("m", profile(args=("--old",)), replicas=1)
    stage = ready_stage(one)
    new = model("m", profile(args=("--new",)), replicas=1)
    stage.catalog(new)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    assert stage.rows["m/2"].phase is Phase.RESERVED
    stage.obey()
    stage.step()
    assert stage.rows["m/1"].phase is Phase.DRAINING
    assert stage.rows["m/2"].phase is Phase.READY
    stage.obey()
    stage.step()
    stage.obey()
    stage.step()
    assert set(stage.rows) == {"m/2"}


def test_a_rollout_without_room_stops_the_old_first_one_at_a_time():
    one = model("m", profile(args=("--old",)), replicas=2)
    stage = ready_stage(one, count=2, gpus=1)
    stage.catalog(model("m", profile(args=("--new",)), replicas=2))
    stage.step()
    phases = {key: row.phase for key, row in stage.rows.items()}
    assert phases == {"m/1": Phase.DRAINING, "m/2": Phase.READY, "m/3": Phase.UNPLACEABLE}
    for _ in range(12):
        stage.obey()
        stage.step()
        serving = len(routes(stage.snap, stage.now).endpoints)
        assert serving >= 1
    assert len(stage.rows) == 2
    assert all(row.phase is Phase.READY and "--new" for row in stage.rows.values())
    assert not {"m/1", "m/2"} & {key for key, row in stage.rows.items() if row.group_epoch == 0}


def test_a_rollout_that_fits_nowhere_leaves_what_runs():
    one = model("m", profile(), replicas=1)
    stage = ready_stage(one)
    stage.catalog(model("m", profile(gpus_per_node=4, tensor_parallel=4), replicas=1))
    stage.step()
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    assert stage.rows["m/2"].phase is Phase.UNPLACEABLE


def test_a_draining_node_is_emptied_by_replacement():
    one = model(replicas=1)
    stage = ready_stage(one)
    nodes = {
        NodeId("n1"): replace(stage.snap.stored.nodes[NodeId("n1")], schedulability=Schedulability.DRAINING),
        NodeId("n2"): node("n2"),
    }
    stage.snap = replace(
        stage.snap,
        stored=replace(stage.snap.stored, nodes=nodes),
        heard={**stage.snap.heard, NodeId("n2"): heard(nodes[NodeId("n2")])},
    )
    for _ in range(8):
        stage.step()
        stage.obey()
    assert [row.shards[0].node_id for row in stage.rows.values()] == ["n2"]
