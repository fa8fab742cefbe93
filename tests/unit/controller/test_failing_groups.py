"""Failed starts of a replica over several nodes: cases 6, 7 and 30."""

from dataclasses import replace

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.rows import Phase
from tests.unit.controller.attempts import CRASH, where
from tests.unit.controller.build import Stage, model, node, profile, snapshot

GANG = model("m", profile(nodes=2), replicas=1)


def gang_stage(names="n1 n2"):
    stage = Stage(snapshot([GANG], [node(name, 1, fabrics=("ib",)) for name in names.split()]))
    stage.step(0)
    return stage


def exit_one(stage, rank, how=CRASH):
    row = stage.rows["m/1"]
    part = row.shards[rank]
    word = stage.snap.heard[part.node_id]
    ended = replace(word.shards[part.shard_id], state=ShardState.EXITED, exit=how)
    stage.say(part.node_id, shards={**word.shards, part.shard_id: ended})


def test_case_30_a_member_that_breaks_is_blamed_alone_and_only_its_node_rests():
    stage = gang_stage("n1 n2 n3")
    stage.obey(ShardState.LOADING)
    stage.step(0)
    exit_one(stage, 1)
    stage.step(0)
    (kept,) = stage.snap.stored.attempts
    assert kept.node_ids == ("n2",)
    stage.obey()
    stage.jump(stage.rows["m/1"].until)
    stage.step(0)
    assert where(stage.rows["m/1"]) == "n1 n3"


def test_case_30_the_group_is_not_started_before_every_member_is_seen_to_be_gone():
    stage = gang_stage("n1 n2 n3 n4")
    stage.obey(ShardState.LOADING)
    stage.step(0)
    exit_one(stage, 0)
    stage.step(0)
    stage.jump(stage.rows["m/1"].until + 100)
    stage.step(0)
    row = stage.rows["m/1"]
    assert row.phase is Phase.BACKOFF, "a member still runs, although two nodes are free"
    assert [part.released for part in row.shards] == [True, False]
    stage.obey()
    stage.step(0)
    assert (stage.rows["m/1"].phase, stage.rows["m/1"].group_epoch) == (Phase.RESERVED, 2)


def test_a_group_that_breaks_again_and_again_is_given_up_after_so_many_epochs():
    stage = gang_stage()
    starts = 0
    for _ in range(40):
        row = stage.rows["m/1"]
        if row.phase is Phase.FAILED:
            break
        if row.phase is Phase.BACKOFF:
            stage.jump(row.until)
            stage.step(0)
            continue
        starts += 1
        stage.obey(ShardState.LOADING)
        stage.step(0)
        exit_one(stage, 0)
        stage.step(0)
        stage.obey()
        stage.step(0)
    row = stage.rows["m/1"]
    assert (starts, row.phase, row.group_epoch) == (6, Phase.FAILED, 6)
    assert not row.holds_devices
