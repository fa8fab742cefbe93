"""Benchmarks: what was measured of one replica at rising concurrency, and whether that still holds.

Pure. A run belongs to what it was measured of: profile, GPU class, engine and version, arguments, weights.
When one of these is another now, the run is stale and says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from llmgw_controller.core.catalog import Model, spec_hash
from llmgw_controller.core.hearing import report_of
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.rollout import is_current
from llmgw_controller.core.rows import ReplicaRow
from llmgw_controller.core.state import Snapshot


@dataclass(frozen=True)
class Percentiles:
    """Of one level, in seconds; nearest rank, so each is a value that was measured."""

    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class BenchmarkPoint:
    """One level. `requests` were answered in `seconds`, `failed` were not."""

    concurrency: int
    requests: int
    failed: int
    seconds: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Percentiles
    #: None: no answer had more than one token.
    inter_token_s: Percentiles | None


@dataclass(frozen=True)
class BenchmarkRun:
    """A whole run. `run_id` is None until it is stored; `at` is the term clock."""

    run_id: int | None
    at: float
    model: str
    profile: str
    gpu_class: str
    gpus: int
    spec_hash: str
    engine: str
    #: None: the engine did not tell.
    engine_version: str | None
    args: tuple[str, ...]
    weights_version: str | None
    prompt_tokens: int
    output_tokens: int
    #: By rising concurrency.
    points: tuple[BenchmarkPoint, ...]


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None of nothing."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    return Percentiles(rank(0.50), rank(0.90), rank(0.95), rank(0.99))


def point(
    *,
    concurrency: int,
    failed: int,
    seconds: float,
    output_tokens: int,
    ttft_s: Sequence[float],
    inter_token_s: Sequence[float],
) -> BenchmarkPoint | None:
    """One level as a point; None when no request of it was answered."""
    first = percentiles(ttft_s)
    if first is None or seconds <= 0:
        return None
    return BenchmarkPoint(
        concurrency=concurrency,
        requests=len(ttft_s),
        failed=failed,
        seconds=seconds,
        output_tokens_per_s=output_tokens / seconds,
        requests_per_s=len(ttft_s) / seconds,
        ttft_s=first,
        inter_token_s=percentiles(inter_token_s),
    )


def run_of(
    snapshot: Snapshot,
    model: Model,
    row: ReplicaRow,
    points: Sequence[BenchmarkPoint],
    *,
    prompt_tokens: int,
    output_tokens: int,
    at: float,
) -> BenchmarkRun | None:
    """What was measured of this replica; None when its profile has left the catalog meanwhile."""
    profile = model.profile(row.profile)
    if profile is None or not is_current(row, model):
        return None
    report = report_of(snapshot, row.shards[0]) if row.shards else None
    return BenchmarkRun(
        run_id=None,
        at=at,
        model=model.name,
        profile=profile.name,
        gpu_class=profile.gpu_class,
        gpus=sum(len(shard.device_ids) for shard in row.shards),
        spec_hash=row.spec_hash,
        engine=profile.engine.value,
        engine_version=report.engine_version if report else None,
        args=profile.args,
        weights_version=model.weights.version if model.weights else None,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        points=tuple(sorted(points, key=lambda one: one.concurrency)),
    )


def engine_version_now(snapshot: Snapshot, model: Model, profile: str, now: float) -> str | None:
    """As a replica that serves says it, else as the newest start did; None: nobody has said."""
    for _, row in sorted(snapshot.stored.replicas.items()):
        if row.model == model.name and row.profile == profile and is_routable(row, snapshot, now):
            report = report_of(snapshot, row.shards[0])
            if report is not None and report.engine_version is not None:
                return report.engine_version
    starts = [
        load
        for load in snapshot.stored.loads
        if (load.model, load.profile) == (model.name, profile) and load.engine_version is not None
    ]
    newest = max(starts, key=lambda load: load.at, default=None)
    return newest.engine_version if newest else None


def stale_because(snapshot: Snapshot, run: BenchmarkRun, now: float) -> str | None:
    """Why it says nothing about what would run now; None: it holds."""
    model = snapshot.catalog.resolve(run.model)
    profile = model.profile(run.profile) if model is not None else None
    if model is None:
        return "the model is not in the catalog any more"
    if profile is None:
        return f"profile {run.profile} is gone"
    weights = model.weights.version if model.weights else None
    if weights != run.weights_version:
        return f"weights changed: {run.weights_version or 'none'} then, {weights or 'none'} now"
    if profile.args != run.args:
        return (
            f"arguments changed: {' '.join(run.args) or 'none'} then, {' '.join(profile.args) or 'none'} now"
        )
    version = engine_version_now(snapshot, model, profile.name, now)
    if version is not None and run.engine_version is not None and version != run.engine_version:
        return f"engine changed: {run.engine} {run.engine_version} then, {version} now"
    if spec_hash(model, profile) != run.spec_hash:
        return "the profile changed since"
    return None
