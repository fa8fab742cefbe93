"""Engines that exit, or are other ones than they were: what is counted, waited for and started again."""

from dataclasses import replace

from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.plan import Start, Stop
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Phase
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import NOW, Stage, model, node, profile, replica, shard, snapshot
from tests.unit.controller.stages import ready_stage


def test_a_crash_waits_longer_each_time_and_ends_in_failed():
    one = model(replicas=1)
    stage = Stage(snapshot([one], [node("n1")]))
    waits = []
    for _ in range(10):
        stage.step()
        row = stage.rows["m/1"]
        if row.phase is Phase.FAILED:
            break
        assert row.phase is Phase.RESERVED
        stage.tell(row, ShardState.EXITED)
        stage.step()
        row = stage.rows["m/1"]
        if row.phase is Phase.BACKOFF:
            waits.append(row.until - row.since)
            stage.jump(row.until)
    assert stage.rows["m/1"].phase is Phase.FAILED
    assert "crashed with code 1: boom" in stage.rows["m/1"].reason
    assert waits == sorted(waits)
    assert len(waits) == 5
    assert all(0.8 * full <= wait <= full for wait, full in zip(waits, [5, 10, 20, 40, 80], strict=True))
    assert not stage.rows["m/1"].holds_devices
    stage.step()
    assert stage.rows["m/1"].phase is Phase.FAILED, "only a new spec or an operator brings it back"
    stage.catalog(model("m", profile(context_length=1024), replicas=1))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.RESERVED
    assert stage.rows["m/1"].failures == 0


def test_failures_are_forgotten_after_a_long_enough_uptime():
    one = model(replicas=1)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0), failures=5, ready_since=NOW - 61)
    stage = Stage(snapshot([one], [node("n1")], [row]))
    stage.tell(row, ShardState.EXITED)
    stage.step()
    assert (stage.rows["m/1"].phase, stage.rows["m/1"].failures) == (Phase.BACKOFF, 1)


def test_a_taken_port_is_retried_with_another_and_counts_for_nothing():
    one = model(replicas=1)
    stage = Stage(snapshot([one], [node("n1")]))
    stage.step()
    row = stage.rows["m/1"]
    stage.tell(row, ShardState.EXITED, exit=Exit(None, None, "port_taken", "bind: address in use"))
    stage.step()
    again = stage.rows["m/1"]
    assert (again.phase, again.failures, again.group_epoch) == (Phase.RESERVED, 0, 2)
    assert again.shards[0].port("http") == 20001


def test_one_exit_takes_the_whole_group_down_and_it_starts_again_as_a_whole():
    one = model("m", profile(nodes=2, gpus_per_node=2, extra_ports=("rendezvous",)), replicas=1)
    nodes = [node("n1", fabrics=("ib",)), node("n2", fabrics=("ib",))]
    stage = Stage(snapshot([one], nodes))
    stage.step()
    row = stage.rows["m/1"]
    assert [part.node_id for part in row.shards] == ["n1", "n2"]
    assert [name for name, _ in row.shards[0].ports] == ["http", "rendezvous"]
    stage.obey()
    stage.step()
    stage.step()
    ready = stage.rows["m/1"]
    assert ready.phase is Phase.READY

    shards = dict(stage.snap.heard[NodeId("n2")].shards)
    shards["m/1.1.1"] = replace(
        shards["m/1.1.1"], state=ShardState.EXITED, exit=Exit(None, 9, "crashed", "killed")
    )
    stage.say("n2", shards=shards)
    plan = stage.step()
    row = stage.rows["m/1"]
    assert row.phase is Phase.BACKOFF
    assert plan.commands == (Stop("n1", "m/1.1.0", row.reason),)
    assert [part.released for part in row.shards] == [False, True]
    assert routes(stage.snap, stage.now).endpoints == {}

    stage.jump(row.until + 1)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.BACKOFF, "not before the other shard is gone too"
    stage.obey()
    stage.step()
    again = stage.rows["m/1"]
    assert (again.phase, again.group_epoch) == (Phase.RESERVED, 2)
    assert [part.shard_id for part in again.shards] == ["m/1.2.0", "m/1.2.1"]


def test_an_engine_that_was_replaced_under_its_epoch_is_not_routed_to_again():
    one = model(replicas=1)
    stage = ready_stage(one)
    row = stage.rows["m/1"]
    stage.tell(row, ShardState.LOADING)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.BACKOFF


def test_an_adopted_engine_may_be_asked_after_its_health_again():
    """Case 38."""
    one = model(replicas=1)
    stage = ready_stage(one)
    row = stage.rows["m/1"]
    stage.tell(row, ShardState.LAUNCHING, adopted=True)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    assert routes(stage.snap, stage.now).endpoints == {}
    stage.tell(row, ShardState.SERVING, adopted=True, probed=False)
    stage.step()
    assert "m/1@1" in routes(stage.snap, stage.now).endpoints


def test_a_shard_its_agent_no_longer_knows_is_gone_but_not_one_it_was_just_told_of():
    one = model(replicas=1)
    stage = ready_stage(one)
    stage.say("n1", shards={})
    stage.step()
    assert stage.rows["m/1"].phase is Phase.BACKOFF
    fresh = Stage(snapshot([one], [node("n1")]))
    for _ in range(10):
        fresh.step()
    assert fresh.rows["m/1"].phase is Phase.RESERVED
    assert Start("n1", "m/1", "m/1.1.0") in fresh.plans[-1].commands, "said again"
