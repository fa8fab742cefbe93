"""More models than GPUs for hours: bounded evictions, nobody starves, nothing that is used is stopped."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_controller.core.plan import PutEviction, PutReplica, Release, Reserve
from llmgw_controller.core.rows import EvictionState, Phase, Wish
from llmgw_controller.core.state import EvictionPolicy, Intervals
from tests.unit.controller.build import model, node, profile
from tests.unit.controller.contest import Contest

ON = Intervals(eviction=EvictionPolicy.ON)


def two_for_one(seed: int, *, every_s: dict[str, float], **changes) -> Contest:
    models = [model(name, idle_after_s=changes.get("idle_after_s"), min_residency_s=60.0) for name in every_s]
    return Contest(seed, models, [node("n1", 1)], every_s, replace(ON, **changes.get("intervals", {})))


@pytest.mark.parametrize("seed", range(2))
def test_two_models_that_want_one_gpu_for_hours(seed):
    """The holder is asked every few minutes, so it is never idle for its hour; the other must not starve."""
    contest = two_for_one(seed, every_s={"a": 300.0, "b": 400.0})
    contest.run(3 * 3600)
    assert len(contest.evictions) >= 4, "it happened at all"
    # One turn each per patience, and what it takes to load.
    assert contest.most_in_an_hour() <= 3600 / ON.eviction_patience_s + 1
    drain_and_load_s = 60 + contest.load_s
    assert contest.longest_wait() <= ON.eviction_patience_s + drain_and_load_s
    assert contest.cut == 0, "no request was ended by an eviction"


def test_the_budget_holds_where_nobody_waits_too_long():
    """Three models take turns on one GPU within their idle spans; the budget of the hour bounds it."""
    contest = two_for_one(
        7, every_s={"a": 900.0, "b": 900.0, "c": 900.0}, idle_after_s=5000.0,
        intervals={"evictions_per_hour": 2, "evictions_per_model_per_hour": 1, "eviction_patience_s": 1e9},
    )  # fmt: skip
    contest.run(3 * 3600)
    assert contest.most_in_an_hour() <= 2


def test_what_is_in_use_all_the_time_is_never_stopped_however_long_others_wait():
    contest = two_for_one(3, every_s={"a": 4.0, "b": 60.0})
    contest.run(3600)
    assert contest.cut == 0
    done = [one for one in contest.snap.stored.evictions.values() if one.state is EvictionState.DONE]
    assert all(one.idle_s >= 30 for one in done)


@st.composite
def contests(draw: st.DrawFn) -> Contest:
    """Up to four models, a gang among them, on two nodes of two GPUs; faults of routers and Redis."""
    names = ["a", "b", "c", "d"][: draw(st.integers(2, 4))]
    models = []
    for number, name in enumerate(names):
        wide = draw(st.sampled_from([1, 1, 2]))
        gang = draw(st.booleans()) and number == 0
        one = profile(
            "p", gpus_per_node=wide, nodes=2 if gang else 1, tensor_parallel=wide * (2 if gang else 1)
        )
        models.append(
            model(
                name, one, idle_after_s=draw(st.sampled_from([None, 30.0, 120.0])), min_residency_s=30.0,
                priority=draw(st.sampled_from([0, 0, 1])), replicas=draw(st.sampled_from([0, 0, 0, 1])),
            )
        )  # fmt: skip
    every_s = {name: draw(st.sampled_from([20.0, 90.0, 300.0])) for name in names}
    fabrics = ("ib",)
    return Contest(
        draw(st.integers(0, 10_000)), models, [node(name, 2, fabrics=fabrics) for name in ("n1", "n2")],
        every_s, replace(ON, eviction_patience_s=draw(st.sampled_from([60.0, 300.0]))),
        load_s=draw(st.sampled_from([5.0, 40.0])), faults=draw(st.sampled_from([0.0, 0.01, 0.05])),
    )  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(contests())
def test_no_eviction_without_idleness_no_claim_twice_and_the_room_goes_to_whom_it_was_made_for(contest):
    """Whatever happens: checked against the world itself, not against the rows that decide."""
    stopped: dict[str, float] = {}

    def look(before, plan) -> None:
        released = {one.replica_id for one in plan.changes if isinstance(one, Release)}
        reserved = {one.replica.replica_id: one.replica for one in plan.changes if isinstance(one, Reserve)}
        for change in plan.changes:
            if isinstance(change, PutReplica) and (change.replica.reason or "").startswith("evicted"):
                row = change.replica
                if (
                    row.phase is Phase.STOPPING
                    and stopped.setdefault(row.endpoint_id, contest.now) == contest.now
                ):
                    assert not contest.in_flight(row.replica_id), "used when it was told to stop"
                    assert not contest.blind, "a verdict while nobody watched"
            if isinstance(change, PutEviction) and change.eviction.state is EvictionState.DONE:
                receipt = change.eviction
                after = reserved.get(receipt.beneficiary_replica_id)
                freed = before.replicas.get(receipt.victim_replica_id)
                if after is not None and freed is not None and receipt.victim_replica_id in released:
                    assert after.wish is Wish.SERVE
                    theirs = {(p.node_id, d) for p in freed.shards for d in p.device_ids}
                    others = [row for name, row in reserved.items() if name != receipt.beneficiary_replica_id]
                    stolen = {(p.node_id, d) for row in others for p in row.shards for d in p.device_ids}
                    mine = {(p.node_id, d) for p in after.shards for d in p.device_ids}
                    assert theirs & mine, "it took the room that was made for it"
                    assert not theirs & stolen or theirs - mine, "nobody else did"

    contest.look = look
    contest.run(900)
    contest.faults = 0.0
    contest.run(300)
    assert contest.cut == 0
    for one in contest.snap.stored.evictions.values():
        if one.state is EvictionState.DRAINING:
            assert contest.now - one.decided_at < 300, "each comes to an end"


def test_a_request_that_nobody_has_reported_yet_is_not_cut():
    """Reports are rare and requests come in between: an acknowledgement alone would stop what has just been
    picked."""
    for seed in range(6):
        contest = two_for_one(seed, every_s={"a": 40.0, "b": 40.0}, intervals={"eviction_patience_s": 60.0})
        contest.load_s, contest.report_s = 5.0, 12.0
        contest.run(1500)
        assert contest.cut == 0, f"seed {seed}"
