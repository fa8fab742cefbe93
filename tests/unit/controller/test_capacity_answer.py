"""How many at a time: read from the curve without claiming more than was measured, times replicas that
the planner itself would place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_controller.core.capacity_answer import Limits, answer, carried, placeable
from llmgw_controller.core.claims import rooms
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.rows import Phase
from tests.unit.controller.build import (
    NOW,
    activity,
    member,
    model,
    node,
    profile,
    replica,
    router,
    shard,
    snapshot,
)
from tests.unit.controller.test_benchmarks import at, run

M = model("m", profile("p", args=("--fast",)))
CURVE = (at(1, 10, 0.1, 0.010), at(2, 18, 0.2, 0.011), at(4, 30, 0.6, 0.014), at(8, 32, 2.6, 0.030))


@pytest.mark.parametrize(
    ("limits", "concurrent", "at_least"),
    [
        (Limits(ttft_p95_s=0.05), 0, False),  # even one is too slow
        (Limits(ttft_p95_s=0.1), 1, False),
        (Limits(ttft_p95_s=0.5), 3, False),  # 2 + floor(0.75 of the way to 4)
        (Limits(ttft_p95_s=0.6), 4, False),
        (Limits(ttft_p95_s=1.0), 4, False),  # 0.8 of one more is not one more
        (Limits(ttft_p95_s=2.5999), 7, False),  # never the level that is over
        (Limits(ttft_p95_s=2.6), 8, True),
        (Limits(ttft_p95_s=60), 8, True),  # nothing is claimed beyond what was measured
        (Limits(inter_token_p95_s=0.0125), 3, False),
        (Limits(ttft_p95_s=2.0, inter_token_p95_s=0.014), 4, False),  # the stricter of two
        (Limits(), 8, False),  # the level of the highest throughput
    ],
)
def test_the_curve_is_read_conservatively(limits, concurrent, at_least):
    found = carried(CURVE, limits)
    assert (found.concurrent, found.at_least) == (concurrent, at_least)


def test_failed_requests_are_over_every_limit():
    failing = (*CURVE[:2], replace(CURVE[2], failed=3), CURVE[3])
    assert carried(failing, Limits(ttft_p95_s=60)).concurrent == 2
    assert carried(failing, Limits()).concurrent == 8
    assert carried((replace(CURVE[0], failed=50),), Limits()).concurrent == 0


def test_a_limit_on_what_was_not_measured_is_not_met():
    assert carried((at(1, 10, 0.1, None),), Limits(inter_token_p95_s=1)).concurrent == 0
    half = (CURVE[0], at(4, 30, 0.2, None))
    assert carried(half, Limits(inter_token_p95_s=1)).concurrent == 1


def test_the_throughput_told_is_one_that_was_measured_within_the_limits():
    assert carried(CURVE, Limits(ttft_p95_s=0.5)).output_tokens_per_s == 18


rising = st.lists(st.floats(0.001, 10), min_size=1, max_size=8).map(sorted)


@given(rising, st.floats(0.001, 12), st.floats(0, 5))
def test_looser_limits_never_carry_less_and_never_more_than_was_measured(latencies, limit, looser):
    points = [at(2**i, float(i + 1), one) for i, one in enumerate(latencies)]
    tight = carried(points, Limits(ttft_p95_s=limit)).concurrent
    loose = carried(points, Limits(ttft_p95_s=limit + looser)).concurrent
    assert tight <= loose <= points[-1].concurrency
    within = [one.concurrency for one in points if one.ttft_s.p95 <= limit]
    over = [one.concurrency for one in points if one.ttft_s.p95 > limit]
    assert max(within, default=0) <= tight
    assert tight < min(over, default=points[-1].concurrency + 1)


def asked(snap, one=M, runs=None, limits=None):
    found = [run(M, *CURVE)] if runs is None else runs
    return answer(snap, verdicts(snap, NOW), one, found, limits or Limits(ttft_p95_s=0.5), NOW)


def test_running_free_and_idle_are_counted_by_the_planner():
    other = model("other", profile(gpus_per_node=2))
    idle = replica(other, 1, Phase.READY, shard("other/1", "n1", 0, 1))
    mine = replica(M, 1, Phase.READY, shard("m/1", "n2", 0, port=20001))
    snap = snapshot(
        [M, other], [node("n1"), node("n2", 4)], [idle, mine],
        activity=activity(router()), routers={"r1": member()},
    )  # fmt: skip
    (line,) = asked(snap).lines
    assert (line.carried.concurrent, line.running, line.on_free, line.after_reclaim) == (3, 1, 3, 2)


def test_without_evidence_of_idleness_nothing_is_reclaimed():
    other = model("other", profile(gpus_per_node=2))
    claimed = replica(other, 1, Phase.READY, shard("other/1", "n1", 0, 1))
    (line,) = asked(snapshot([M, other], [node("n1")], [claimed])).lines
    assert (line.running, line.on_free, line.after_reclaim) == (0, 0, 0)


def test_a_gang_counts_whole_groups_on_one_fabric():
    gang = model("m", profile("p", nodes=2, gpus_per_node=2, args=("--fast",)))
    nodes = [node(f"a{i}", fabrics=("ib",)) for i in range(3)] + [node("b0", fabrics=("eth",))]
    snap = snapshot([gang], nodes)
    assert placeable(gang, gang.profiles[0], rooms(snap, NOW)) == 1


def test_ports_run_out_as_they_would_for_real():
    small = node("n1", 8, engine_ports=(20000, 20002))
    snap = snapshot([M], [small])
    assert placeable(M, M.profiles[0], rooms(snap, NOW)) == 3


def test_what_was_never_measured_names_the_command_and_claims_nothing():
    found = asked(snapshot([M], [node("n1")]), runs=[])
    assert found.lines == ()
    assert found.warnings == ("profile p on L4 was never measured: llmgwctl bench run m",)


def test_a_stale_run_answers_with_a_warning_and_a_valid_one_goes_before_it():
    snap = snapshot([M], [node("n1")])
    stale = run(M, *CURVE, run_id=9, at=NOW - 1, weights_version="v0")
    (line,) = asked(snap, runs=[stale]).lines
    assert line.stale_because == "weights changed: v0 then, v1 now"
    assert any("measured of what is no longer so" in one for one in asked(snap, runs=[stale]).warnings)
    (line,) = asked(snap, runs=[stale, run(M, *CURVE)]).lines
    assert (line.run.run_id, line.stale_because) == (7, None)


def test_limits_that_were_not_reached_are_told():
    found = asked(snapshot([M], [node("n1")]), limits=Limits(ttft_p95_s=60))
    assert found.warnings == ("profile p: measured up to 8 at a time, and that is within limits",)
