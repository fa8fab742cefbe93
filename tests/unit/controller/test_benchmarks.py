"""Benchmarks as stored: percentiles, what a run is of, and when it says nothing any more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_controller.adapters.benchmarks_postgres import from_document, to_document
from llmgw_controller.core.benchmarks import (
    BenchmarkPoint,
    BenchmarkRun,
    Percentiles,
    percentiles,
    point,
    run_of,
    stale_because,
)
from llmgw_controller.core.catalog import Weights, spec_hash
from llmgw_controller.core.heard import ShardState
from llmgw_controller.core.rows import LoadRecord, Phase
from tests.unit.controller.build import (
    NOW,
    heard,
    model,
    node,
    profile,
    replica,
    report,
    shard,
    snapshot,
)

M = model("m", profile("p", args=("--fast",)))


def at(concurrency: int, rate: float, ttft: float = 0.1, gap: float | None = 0.01, failed: int = 0):
    """One point whose percentiles are all alike."""
    between = None if gap is None else Percentiles(gap, gap, gap, gap)
    return BenchmarkPoint(
        concurrency, 100, failed, 10.0, rate, 10.0, Percentiles(ttft, ttft, ttft, ttft), between
    )


def run(one=M, *points: BenchmarkPoint, **changes: object) -> BenchmarkRun:
    plain = BenchmarkRun(
        run_id=7, at=NOW - 100, model=one.name, profile="p", gpu_class="L4", gpus=1,
        spec_hash=spec_hash(one, one.profiles[0]), engine="llamacpp", engine_version="b1",
        args=one.profiles[0].args, weights_version="v1", prompt_tokens=64, output_tokens=32,
        points=points or (at(1, 10.0),),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_values_that_were_measured_in_their_order(values):
    found = percentiles(values)
    assert found is not None
    four = (found.p50, found.p90, found.p95, found.p99)
    assert set(four) <= set(values)
    assert list(four) == sorted(four)
    assert sum(value <= found.p95 for value in values) >= 0.95 * len(values)
    assert sum(value < found.p95 for value in values) <= 0.95 * len(values)


def test_nothing_has_no_percentiles_and_an_unanswered_level_is_no_point():
    assert percentiles([]) is None
    assert point(concurrency=1, failed=3, seconds=1, output_tokens=0, ttft_s=[], inter_token_s=[]) is None


def test_a_level_becomes_rates_and_percentiles():
    made = point(concurrency=2, failed=1, seconds=4.0, output_tokens=80, ttft_s=[0.1, 0.3], inter_token_s=[])
    assert made is not None
    assert (made.requests, made.output_tokens_per_s, made.requests_per_s) == (2, 20.0, 0.5)
    assert made.ttft_s == Percentiles(0.1, 0.3, 0.3, 0.3)
    assert made.inter_token_s is None, "unknown, not zero"


def fleet(one=M, version: str | None = "b1"):
    part = shard("m/1", "n1", 0)
    row = replica(one, 1, Phase.READY, part)
    words = [heard(node("n1"), [report(row, part, ShardState.SERVING, engine_version=version)])]
    return snapshot([one], [node("n1")], [row], words), row


def test_a_run_is_of_what_the_replica_is_now():
    snap, row = fleet()
    made = run_of(snap, M, row, [at(2, 1.0), at(1, 2.0)], prompt_tokens=64, output_tokens=32, at=NOW)
    assert made is not None
    assert [one.concurrency for one in made.points] == [1, 2]
    assert replace(made, points=run().points, run_id=7, at=NOW - 100) == run()
    assert stale_because(snap, made, NOW) is None
    changed = model("m", profile("p", args=("--slow",)))
    assert run_of(snap, changed, row, [], prompt_tokens=1, output_tokens=1, at=NOW) is None


@pytest.mark.parametrize(
    ("one", "version", "because"),
    [
        (M, "b1", None),
        (M, None, None),  # not told is not another
        (M, "b2", "engine changed: llamacpp b1 then, b2 now"),
        (replace(M, weights=Weights("v2", (), None)), "b1", "weights changed: v1 then, v2 now"),
        (replace(M, weights=None), "b1", "weights changed: v1 then, none now"),
        (model("m", profile("p", args=())), "b1", "arguments changed: --fast then, none now"),
        (model("m", profile("p", args=("--fast",), context_length=9)), "b1", "the profile changed since"),
        (model("m", profile("other")), "b1", "profile p is gone"),
        (model("else"), "b1", "the model is not in the catalog any more"),
        # What needs no restart of an engine makes no measurement stale.
        (model("m", profile("p", args=("--fast",), drain_timeout_s=1.0)), "b1", None),
    ],
)
def test_a_run_says_why_it_no_longer_holds(one, version, because):
    snap, _ = fleet(one, version)
    assert stale_because(snap, run(), NOW) == because


def test_with_nothing_running_the_newest_start_tells_the_engine():
    loads = tuple(
        LoadRecord(M.name, "p", "L4", 3.0, NOW - age, engine_version=version)
        for age, version in ((50, "b1"), (10, "b2"))
    )
    snap = snapshot([M], [node("n1")], loads=loads)
    assert stale_because(snap, run(), NOW) == "engine changed: llamacpp b1 then, b2 now"


def test_what_is_stored_is_what_is_read():
    made = run(M, at(1, 3.0), at(2, 5.0, gap=None))
    assert from_document(to_document(made), run_id=7, at=made.at) == made
    bare = replace(made, engine_version=None, weights_version=None, args=())
    assert from_document(to_document(bare), run_id=7, at=made.at) == bare
