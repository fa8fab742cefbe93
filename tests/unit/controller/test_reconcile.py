"""Lives of replicas, as one pass after the other decides them. Each step also proves that it is at rest."""

from dataclasses import replace

import pytest

from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.plan import FetchWeights, Start
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import Cause, Phase
from tests.unit.controller.build import Stage, ask, model, node, profile, replica, shard, snapshot
from tests.unit.controller.stages import ready_stage


def test_a_configured_replica_comes_up_and_is_routed_to():
    one = model(replicas=1)
    stage = Stage(snapshot([one], [node("n1")]))
    plan = stage.step()
    row = stage.rows["m/1"]
    assert row.phase is Phase.RESERVED
    assert row.group_epoch == 1
    assert [part.shard_id for part in row.shards] == ["m/1.1.0"]
    assert set(plan.commands) == {FetchWeights("m"), Start("n1", "m/1", "m/1.1.0")}
    assert routes(stage.snap, stage.now).endpoints == {}

    stage.obey(ShardState.LOADING)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.STARTING

    stage.jump(stage.now + 30)
    stage.obey(ShardState.SERVING)
    stage.step()
    row = stage.rows["m/1"]
    assert row.phase is Phase.READY
    assert [load.seconds for load in stage.snap.stored.loads] == [32.0]
    endpoint = routes(stage.snap, stage.now).endpoints["m/1@1"]
    assert endpoint.url == f"http://{node('n1').address}:20000"
    assert not endpoint.draining


def test_serving_without_a_probe_is_not_ready():
    one = model()
    row = replica(one, 1, Phase.STARTING, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node("n1")], [replace(row, cause=Cause.ACTIVATION)]))
    stage.tell(row, ShardState.SERVING, probed=False)
    stage.step()
    assert stage.rows["m/1"].phase is Phase.STARTING


def test_a_cold_model_starts_on_demand_once_and_its_activation_closes_when_ready():
    one = model()
    stage = Stage(snapshot([one], [node("n1")], activations=ask(one)))
    stage.step()
    assert stage.rows["m/1"].cause is Cause.ACTIVATION
    assert len(stage.rows) == 1
    stage.obey()
    stage.step()
    assert stage.rows["m/1"].phase is Phase.READY
    assert stage.snap.stored.activations == {}


def test_an_activation_that_nobody_repeats_is_abandoned_and_what_it_had_not_placed_goes():
    one = model()
    stage = Stage(snapshot([one], [node("n1", engine_ports=None)], activations=ask(one)))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.UNPLACEABLE
    assert stage.snap.stored.activations == {}, "refused at once: nothing is on its way out"
    assert stage.step().changes == (), "kept as the answer for whoever asks next"
    stage.jump(stage.now + 300)
    stage.step()
    assert stage.rows == {}


def test_a_removed_model_drains_and_an_unreadable_one_does_not():
    one = model(replicas=1)
    stage = ready_stage(one, stored_models={"m": "{broken"})
    stage.catalog()
    assert stage.step().changes == ()
    stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, models={}))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.DRAINING


def test_a_raised_count_keeps_what_a_request_started():
    one = model(replicas=0)
    row = replica(one, 1, Phase.READY, shard("m/1", "n1", 0), cause=Cause.ACTIVATION)
    stage = Stage(snapshot([one], [node("n1")], [row]))
    stage.catalog(replace(one, replicas=1))
    stage.step()
    assert set(stage.rows) == {"m/1"}
    assert stage.rows["m/1"].cause is Cause.CONFIGURATION


def test_large_groups_are_placed_before_small_ones():
    small = model("a-small", profile("s"), replicas=2)
    large = model("z-large", profile("l", gpus_per_node=2, tensor_parallel=2), replicas=1)
    stage = Stage(snapshot([small, large], [node("n1"), node("n2")]))
    stage.step()
    assert all(row.phase is Phase.RESERVED for row in stage.rows.values())
    assert len({row.shards[0].node_id for key, row in stage.rows.items() if "small" in key}) == 1


def test_the_lowest_free_number_names_a_new_replica():
    one = model(replicas=3)
    rows = [replica(one, number, Phase.READY, shard(f"m/{number}", f"n{number}", 0)) for number in (1, 3)]
    stage = Stage(snapshot([one], [node(f"n{number}") for number in (1, 2, 3)], rows))
    stage.step()
    assert set(stage.rows) == {"m/1", "m/2", "m/3"}


@pytest.mark.parametrize("phase", list(Phase))
def test_any_phase_can_be_wished_away(phase):
    one = model()
    parts = () if phase in (Phase.WANTED, Phase.UNPLACEABLE) else (shard("m/1", "n1", 0),)
    row = replica(one, 1, phase, *parts)
    if phase is Phase.STOPPED:
        row = replace(row, shards=())
    stage = Stage(snapshot([], [node("n1")], [row]))
    for _ in range(6):
        stage.step()
        stage.obey()
    assert stage.rows == {}
