"""Rolling changes: how many may be away, who leaves first, and that a count restarts nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_controller.core.catalog import Rollout
from llmgw_controller.core.heard import Exit, ShardState
from llmgw_controller.core.plan import Reserve
from llmgw_controller.core.reconcile import reconcile
from llmgw_controller.core.routes import routes
from llmgw_controller.core.rows import AttemptRow, Phase, Schedulability, Wish
from llmgw_kit.ids import ModelId, NodeId, ReplicaId
from tests.unit.controller.build import NOW, Stage, model, node, profile, replica, shard, snapshot

OLD = model("m", profile(args=("--old",)))
NEW = profile(args=("--new",))


def running(one, count, gpus=1, spare=0):
    """`count` replicas on nodes of `gpus`, and `spare` empty nodes."""
    nodes = [node(f"n{n}", gpus) for n in range(1, count + spare + 1)]
    rows = [replica(one, n, Phase.READY, shard(f"m/{n}", f"n{n}", 0)) for n in range(1, count + 1)]
    return Stage(snapshot([replace(one, replicas=count)], nodes, rows))


def roll(stage, one, most=60):
    """Until all is new and at rest: the fewest that ever served, and the most that ever held devices."""
    stage.catalog(one)
    fewest, widest = 10**9, 0
    for _ in range(most):
        stage.step()
        fewest = min(
            fewest, len([e for e in routes(stage.snap, stage.now).endpoints.values() if not e.draining])
        )
        widest = max(widest, sum(row.holds_devices for row in stage.rows.values()))
        rows = stage.rows.values()
        fresh = all(row.spec_hash == one.spec_hashes["p"] and row.phase is Phase.READY for row in rows)
        if fresh and len(rows) == one.replicas:
            return fewest, widest
        stage.obey()
    raise AssertionError({name: (row.phase, row.reason) for name, row in stage.rows.items()})


@pytest.mark.parametrize(
    ("rollout", "away", "spare", "fewest", "widest"),
    [
        (Rollout.SURGE, 1, 4, 4, 5),
        (Rollout.SURGE, 2, 4, 4, 6),
        (Rollout.SURGE, 1, 0, 3, 4),
        (Rollout.SURGE, 3, 0, 1, 4),
        (Rollout.STOP_FIRST, 1, 4, 3, 5),
        (Rollout.STOP_FIRST, 1, 0, 3, 4),
        (Rollout.STOP_FIRST, 2, 0, 2, 4),
        (Rollout.STOP_FIRST, 9, 0, 0, 4),
    ],
)
def test_no_more_are_away_or_too_many_than_the_model_lets(rollout, away, spare, fewest, widest):
    """Devices are held by one more than serve while an old one still drains."""
    one = model("m", NEW, replicas=4, rollout=rollout, max_unavailable=away)
    assert roll(running(OLD, 4, spare=spare), one) == (fewest, widest)


def test_the_only_replica_is_replaced_without_a_spare_gpu_when_that_is_chosen():
    one = model("m", NEW, replicas=1, rollout=Rollout.STOP_FIRST)
    assert roll(running(OLD, 1), one) == (0, 1)


def test_two_small_ones_leave_together_for_a_large_one_only_when_two_may_be_away():
    wide = profile(gpus_per_node=2, tensor_parallel=2)

    def stage(**changes):
        rows = [replica(OLD, n, Phase.READY, shard(f"m/{n}", "n1", n - 1, port=20000 + n)) for n in (1, 2)]
        made = Stage(snapshot([replace(OLD, replicas=2)], [node("n1", 2)], rows))
        made.catalog(model("m", wide, replicas=2, **changes))
        made.step()
        return [row.wish for _, row in sorted(made.rows.items())][:2]

    assert stage(max_unavailable=1) == [Wish.SERVE, Wish.SERVE]
    assert stage(max_unavailable=2) == [Wish.DRAIN, Wish.DRAIN]


@pytest.mark.parametrize("rollout", list(Rollout))
def test_a_spec_that_fits_nowhere_takes_nothing_down(rollout):
    stage = running(OLD, 2)
    stage.catalog(model("m", profile(gpus_per_node=8, tensor_parallel=8), replicas=2, rollout=rollout))
    for _ in range(5):
        stage.step()
        stage.obey()
    assert [stage.rows[name].phase for name in ("m/1", "m/2")] == [Phase.READY, Phase.READY]


@pytest.mark.parametrize(("rollout", "left"), [(Rollout.SURGE, 4), (Rollout.STOP_FIRST, 3)])
def test_a_spec_that_does_not_start_costs_no_more_than_may_be_away(rollout, left):
    stage = running(OLD, 4, spare=2)
    new = model("m", NEW, replicas=4, rollout=rollout)
    stage.catalog(new)
    for _ in range(60):
        stage.step()
        stage.obey()
        for row in list(stage.rows.values()):
            if row.spec_hash == new.spec_hashes["p"] and row.phase is Phase.RESERVED:
                stage.tell(row, ShardState.EXITED, exit=Exit(1, None, "crashed", "bad flag"))
    serving = [row for row in stage.rows.values() if row.phase is Phase.READY]
    assert len(serving) == left
    assert all(row.spec_hash == OLD.spec_hashes["p"] for row in serving)
    failed = [row for row in stage.rows.values() if row.phase is Phase.FAILED]
    assert [row.reason.startswith("profile failing") for row in failed] == [True]


@pytest.mark.parametrize("rollout", list(Rollout))
def test_a_fleet_that_is_short_of_room_is_rolled_all_the_same(rollout):
    """Four wanted and three nodes: the one that waits is no excuse, and no licence to stop two at once."""
    stage = running(OLD, 3)
    stage.catalog(replace(OLD, replicas=4))
    stage.step()
    new = model("m", NEW, replicas=4, rollout=rollout)
    stage.catalog(new)
    fewest = 3
    for _ in range(40):
        stage.step()
        stage.obey()
        serving = [one for one in routes(stage.snap, stage.now).endpoints.values() if not one.draining]
        fewest = min(fewest, len(serving))
    placed = [row for row in stage.rows.values() if row.phase is Phase.READY]
    assert (fewest, len(placed)) == (2, 3)
    assert all(row.spec_hash == new.spec_hashes["p"] for row in placed)


def test_nothing_is_stopped_for_a_profile_that_is_known_to_fail():
    new = model("m", NEW, replicas=2, rollout=Rollout.STOP_FIRST)
    stage = running(OLD, 2)
    failed = tuple(
        AttemptRow(ModelId("m"), "p", "L4", new.spec_hashes["p"], ReplicaId(f"m/{n}"), (NodeId(f"n{n}"),),
                   "crashed", "crashed", NOW - 1)
        for n in (8, 9)
    )  # fmt: skip
    stage.snap = replace(stage.snap, stored=replace(stage.snap.stored, attempts=failed))
    stage.catalog(new)
    stage.step()
    assert [row.wish for row in stage.rows.values()] == [Wish.SERVE] * 2


def test_what_is_away_already_counts():
    """One of four came to grief: with one that may be away no other is stopped before it is back."""
    stage = running(OLD, 4)
    stage.tell(stage.rows["m/4"], ShardState.EXITED, exit=Exit(1, None, "crashed", "boom"))
    stage.step(0)
    stage.catalog(model("m", NEW, replicas=4, rollout=Rollout.STOP_FIRST))
    stage.step(0)
    wishes = [row.wish for row in stage.rows.values() if row.phase is Phase.READY]
    assert wishes == [Wish.SERVE] * 3


def test_a_draining_node_empties_so_many_at_a_time():
    rows = [replica(OLD, n, Phase.READY, shard(f"m/{n}", "n1", n - 1, port=20000 + n)) for n in (1, 2, 3)]
    nodes = [node("n1", 3, schedulability=Schedulability.DRAINING), node("n2", 3)]
    one = replace(OLD, replicas=3, max_unavailable=2)
    stage = Stage(snapshot([one], nodes, rows))
    stage.step()
    assert sum(row.phase is Phase.RESERVED for row in stage.rows.values()) == 2
    for _ in range(20):
        stage.obey()
        stage.step()
    assert {str(row.shards[0].node_id) for row in stage.rows.values()} == {"n2"}
    assert len(stage.rows) == 3


@settings(max_examples=60, deadline=None)
@given(
    before=st.integers(1, 6),
    after=st.integers(0, 8),
    away=st.integers(1, 3),
    rollout=st.sampled_from(list(Rollout)),
    free=st.integers(0, 4),
)
def test_a_changed_count_restarts_nothing(before, after, away, rollout, free):
    """Whatever it is changed to: what runs keeps its place and epoch, or is one too many and drains."""
    one = model("m", profile(), replicas=before, max_unavailable=away, rollout=rollout)
    stage = running(one, before, spare=free)
    stage.step()
    kept = {name: (row.group_epoch, row.shards) for name, row in stage.rows.items()}
    stage.catalog(replace(one, replicas=after))
    plan = stage.step()
    gone = [name for name, row in stage.rows.items() if row.wish is not Wish.SERVE]
    assert len(gone) == max(0, before - after)
    for name, (epoch, shards) in kept.items():
        assert (stage.rows[name].group_epoch, stage.rows[name].shards) == (epoch, shards)
    started = [change for change in plan.changes if isinstance(change, Reserve)]
    assert len(started) == min(max(0, after - before), free)


def test_a_changed_count_in_the_middle_of_a_rollout_stops_neither():
    one = model("m", NEW, replicas=3)
    stage = running(OLD, 3, spare=1)
    stage.catalog(one)
    stage.step()
    assert roll(stage, replace(one, replicas=2))[0] >= 2


def test_what_is_wanted_and_waits_unplaced_takes_the_new_spec_where_it_stands():
    stage = Stage(snapshot([replace(OLD, replicas=1)], [node("n1", 0)]))
    stage.step()
    assert stage.rows["m/1"].phase is Phase.UNPLACEABLE
    stage.catalog(model("m", NEW, replicas=1))
    stage.step()
    assert set(stage.rows) == {"m/1"}
    assert stage.rows["m/1"].spec_hash == model("m", NEW).spec_hashes["p"]


def test_nothing_is_rolled_while_a_new_leader_learns():
    nodes = [node("n1", 1), node("n2", 1)]
    row = replica(OLD, 1, Phase.READY, shard("m/1", "n1", 0))
    snap = snapshot(
        [model("m", NEW, replicas=1, rollout=Rollout.STOP_FIRST)], nodes, [row], term_started=NOW - 2
    )
    unheard = {key: word for key, word in snap.heard.items() if key != NodeId("n2")}
    assert reconcile(replace(snap, heard=unheard), NOW).changes == ()
