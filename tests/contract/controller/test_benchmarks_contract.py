"""Benchmark runs: kept alike by both stores, a bounded number of each kind, written under the term only."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from llmgw_controller.core.benchmarks import BenchmarkPoint, BenchmarkRun, Percentiles
from llmgw_controller.ports import BENCHMARKS_KEPT, Fenced
from llmgw_kit.ids import LeaseTerm

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World

T = 1_900_000_000.0
RUN = BenchmarkRun(
    run_id=None, at=T, model="m", profile="p", gpu_class="H100", gpus=8, spec_hash="abc", engine="vllm",
    engine_version="0.9.1", args=("--enforce-eager", 'quo"te'), weights_version="v1", prompt_tokens=256,
    output_tokens=128,
    points=(
        BenchmarkPoint(1, 8, 0, 4.5, 33.25, 1.5, Percentiles(0.1, 0.2, 0.3, 0.4), None),
        BenchmarkPoint(
            2, 8, 1, 4.0, 60.0, 2.0, Percentiles(0.1, 0.2, 0.3, 0.4), Percentiles(0.01, 0.02, 0.03, 0.04)
        ),
    ),
)  # fmt: skip


async def term(world: "World") -> LeaseTerm:
    lease = await world.lease.acquire(holder="a", address="a:1", ttl_s=60)
    assert lease is not None
    return lease.term


async def test_what_was_put_is_read_newest_first_with_its_number(world: "World"):
    held, store = await term(world), world.store
    older = await store.put_benchmark(held, replace(RUN, at=T - 60))
    bare = replace(RUN, engine_version=None, weights_version=None, args=(), model="other")
    other = await store.put_benchmark(held, replace(bare, at=T - 30))
    newer = await store.put_benchmark(held, RUN)
    assert len({older, other, newer}) == 3
    assert await store.benchmarks(None) == [
        replace(RUN, run_id=newer),
        replace(bare, run_id=other, at=T - 30),
        replace(RUN, run_id=older, at=T - 60),
    ]
    assert [run.run_id for run in await store.benchmarks("m")] == [newer, older]
    assert await store.benchmarks("nobody") == []


async def test_the_newest_of_each_kind_are_kept(world: "World"):
    held, store = await term(world), world.store
    kept = await store.put_benchmark(held, replace(RUN, profile="rare", at=T - 9999))
    for number in range(BENCHMARKS_KEPT + 2):
        await store.put_benchmark(held, replace(RUN, at=T + number))
    runs = await store.benchmarks("m")
    assert len(runs) == BENCHMARKS_KEPT + 1
    assert runs[-1].run_id == kept, "the only one of its kind, however old"
    assert min(run.at for run in runs[:-1]) == T + 2


async def test_who_lost_the_lease_stores_nothing(world: "World"):
    held, store = await term(world), world.store
    with pytest.raises(Fenced):
        await store.put_benchmark(LeaseTerm(held + 1), RUN)
    assert await store.benchmarks(None) == []


async def test_no_text_of_an_engine_keeps_a_run_from_being_written(world: "World"):
    held, store = await term(world), world.store
    ugly = replace(RUN, engine_version="0.9\0", args=("--name", "a\0b\ud800"))
    number = await store.put_benchmark(held, ugly)
    clean = replace(RUN, run_id=number, engine_version="0.9\ufffd", args=("--name", "a\ufffdb\ufffd"))
    assert await store.benchmarks("m") == [clean]
