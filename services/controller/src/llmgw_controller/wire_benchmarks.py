"""Benchmarks: llmgw.v1 to core types and back."""

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.core.benchmarks import BenchmarkPoint, BenchmarkRun, Percentiles, point
from llmgw_controller.core.capacity_answer import CapacityLine


def point_from(message: agent_pb2.BenchmarkLevel) -> BenchmarkPoint | None:
    """None when nothing of it was answered."""
    return point(
        concurrency=message.concurrency,
        failed=message.failed,
        seconds=message.seconds,
        output_tokens=message.output_tokens,
        ttft_s=message.ttft_s,
        inter_token_s=message.inter_token_s,
    )


def point_to(one: BenchmarkPoint) -> pb.BenchmarkPoint:
    """One level."""
    return pb.BenchmarkPoint(
        concurrency=one.concurrency, requests=one.requests, failed=one.failed, seconds=one.seconds,
        output_tokens_per_s=one.output_tokens_per_s, requests_per_s=one.requests_per_s,
        ttft_s=_percentiles_to(one.ttft_s),
        inter_token_s=_percentiles_to(one.inter_token_s) if one.inter_token_s is not None else None,
    )  # fmt: skip


def _percentiles_to(one: Percentiles) -> pb.Percentiles:
    return pb.Percentiles(p50=one.p50, p90=one.p90, p95=one.p95, p99=one.p99)


def run_to(run: BenchmarkRun, *, stale: str | None, run_id: int | None = None) -> pb.BenchmarkRun:
    """A stored run; `run_id` for one that has just been stored."""
    number = run.run_id if run_id is None else run_id
    assert number is not None, "only what is stored is shown"
    return pb.BenchmarkRun(
        run_id=number, at_unix_s=run.at, model=run.model, profile=run.profile, gpu_class=run.gpu_class,
        gpus=run.gpus, spec_hash=run.spec_hash, engine=run.engine, engine_version=run.engine_version or "",
        args=run.args, weights_version=run.weights_version, prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens, points=[point_to(one) for one in run.points], stale_because=stale,
    )  # fmt: skip


def line_to(line: CapacityLine) -> pb.CapacityLine:
    """One profile's answer."""
    assert line.run.run_id is not None, "only what is stored is shown"
    return pb.CapacityLine(
        profile=line.profile, gpu_class=line.gpu_class, run_id=line.run.run_id,
        concurrent_per_replica=line.carried.concurrent,
        output_tokens_per_s_per_replica=line.carried.output_tokens_per_s, replicas_running=line.running,
        replicas_on_free=line.on_free, replicas_after_reclaim=line.after_reclaim,
        stale_because=line.stale_because,
    )  # fmt: skip
