"""Lives of replicas, as one pass after the other decides them. Each step also proves that it is at rest."""

from dataclasses import replace

import pytest

from llmgw_controller.core.plan import Drain, FetchWeights, Start, Stop
from llmgw_controller.core.routes import routes
from llmgw_controller.core.state import (
    Cause,
    Exit,
    Phase,
    Schedulability,
    ShardState,
    Wish,
)
from llmgw_kit.ids import NodeId
from tests.unit.controller.build import (
    NOW,
    Stage,
    activity,
    ask,
    heard,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
)


def ready_stage(one, count=1, gpus=2, **changes):
    """One node a replica, all ready."""
    nodes = [node(f"n{number}", gpus) for number in range(1, count + 1)]
    rows = [
        replica(one, number, Phase.READY, shard(f"m/{number}", f"n{number}", 0))
        for number in range(1, count + 1)
    ]
    return Stage(snapshot([one], nodes, rows, **changes))


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


def test_surplus_drains_the_longest_idle_first():
    one = model(replicas=3)
    stage = ready_stage(
        one,
        3,
        activity=activity(router(), touched={"m/1": 5, "m/2": 900, "m/3": 50}),
        routers={"r1": member()},
    )
    stage.step()
    assert all(row.phase is Phase.READY for row in stage.rows.values())
    stage.catalog(replace(one, replicas=2))
    plan = stage.step()
    assert stage.rows["m/2"].phase is Phase.DRAINING
    assert plan.commands == (Drain("n2", "m/2.1.0"),)
    assert routes(stage.snap, stage.now).endpoints["m/2@1"].draining


@pytest.mark.parametrize(
    ("drained", "running", "unknown", "stops"),
    [
        (True, 0, None, True),
        (True, None, None, True),
        (True, 2, None, False),
        (True, None, "HTTP 500", False),
        (False, 0, None, False),
    ],
    ids=["both zero", "no gauge", "engine still runs", "gauge unreadable", "a router has not acknowledged"],
)
def test_a_drain_ends_only_when_routers_and_engine_agree(drained, running, unknown, stops):
    one = model()
    row = replica(one, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - 10)
    stage = Stage(
        snapshot(
            [one],
            [node("n1")],
            [row],
            routers={"r1": member()},
            drained=frozenset({"m/1@1"} if drained else ()),
        )
    )
    stage.tell(row, ShardState.DRAINING, running=running, running_unknown=unknown)
    stage.step()
    assert (stage.rows["m/1"].phase is Phase.STOPPING) is stops


def test_a_drain_past_its_deadline_is_cut():
    one = model("m", profile(drain_timeout_s=30.0))
    row = replica(one, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - 31)
    stage = Stage(snapshot([one], [node("n1")], [row], routers={"r1": member()}))
    stage.tell(row, ShardState.DRAINING, running=1)
    plan = stage.step()
    assert stage.rows["m/1"].phase is Phase.STOPPING
    assert [change.kind for change in plan.changes if hasattr(change, "kind")] == ["drain_cut"]


@pytest.mark.parametrize(
    ("reason", "waited", "running", "phase"),
    [
        ("replaced", 16, 0, Phase.STOPPING),
        ("replaced", 9, 0, Phase.DRAINING),
        ("replaced", 16, 1, Phase.DRAINING),
        ("replaced", 16, None, Phase.DRAINING),
        ("replaced", 300, 1, Phase.STOPPING),
        ("idle", 16, 0, Phase.DRAINING),
        ("idle", 30, 0, Phase.READY),
    ],
    ids=[
        "quiet twice", "too early", "something runs", "no gauge", "at the deadline",
        "only idle: waits for all", "only idle: taken back",
    ],
)  # fmt: skip
def test_a_router_that_never_acknowledges(reason, waited, running, phase):
    """Cases 12, 13, 14."""
    one = model()
    row = replica(
        one, 1, Phase.DRAINING, shard("m/1", "n1", 0), since=NOW - waited, reason=reason,
        revocable=reason == "idle", cause=Cause.ACTIVATION,
    )  # fmt: skip
    # An agent is not told of a drain that may be taken back.
    told = ShardState.SERVING if row.revocable else ShardState.DRAINING
    stage = Stage(snapshot([one], [node("n1")], [row], routers={"r1": member()}))
    stage.tell(row, told, running=running)
    stage.step(seconds=5.0)
    assert stage.rows["m/1"].phase is not Phase.STOPPING or waited == 300, "a single zero is no evidence"
    stage.tell(row, told, running=running)
    stage.step()
    assert stage.rows["m/1"].phase is phase


def test_devices_are_freed_only_by_a_seen_exit_and_the_port_rests():
    """Case 7."""
    one = model()
    row = replica(one, 1, Phase.STOPPING, shard("m/1", "n1", 0))
    stage = Stage(snapshot([one], [node("n1")], [row]))
    stage.step()
    assert stage.rows["m/1"].holds_devices
    stage.tell(row, ShardState.EXITED)
    stage.step()
    assert stage.rows == {}
    assert [(q.port, q.until > stage.now) for q in stage.snap.stored.quarantine] == [(20000, True)]


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
