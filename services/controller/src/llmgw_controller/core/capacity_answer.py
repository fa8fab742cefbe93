"""How many requests at a time a model carries within given latencies: from stored benchmarks, never guessed.

Pure. Between two measured levels the latency is taken to rise in a straight line and the count is rounded
down: measured curves bend upwards, so the line lies above them. Beyond the last level nothing is claimed.
How many replicas there could be is counted by the planner that would place them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import floor

from llmgw_controller.core.activity import Verdicts
from llmgw_controller.core.benchmarks import BenchmarkPoint, BenchmarkRun, stale_because
from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Rooms, rooms, with_claim
from llmgw_controller.core.idleness import idle_replicas
from llmgw_controller.core.placement import Memo, Placement, place
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ReplicaId

#: A level with a larger share of failed requests is over the limit, however quick the others were.
FAILED_MOST = 0.01
#: Replicas counted; a fleet that takes more of one model has other questions.
COUNT_MOST = 500

#: Stands for replicas that have no row.
_IMAGINED = ReplicaId("imagined")


@dataclass(frozen=True)
class Limits:
    """95 of 100 requests are to be at least so quick; None: no limit."""

    ttft_p95_s: float | None = None
    inter_token_p95_s: float | None = None

    @property
    def any(self) -> bool:
        return self.ttft_p95_s is not None or self.inter_token_p95_s is not None


@dataclass(frozen=True)
class Carried:
    """By one replica. `concurrent` 0: even one request at a time is too slow."""

    concurrent: int
    #: At the measured level below; a lower bound.
    output_tokens_per_s: float
    #: The limits were not reached at the last measured level: it may carry more.
    at_least: bool


@dataclass(frozen=True)
class CapacityLine:
    """One profile. Counts of replicas are beside each other: running, and more that could be placed."""

    profile: str
    gpu_class: str
    run: BenchmarkRun
    carried: Carried
    running: int
    on_free: int
    #: More still, were all idle replicas gone.
    after_reclaim: int
    stale_because: str | None


@dataclass(frozen=True)
class CapacityAnswer:
    lines: tuple[CapacityLine, ...]
    warnings: tuple[str, ...]


def carried(points: Sequence[BenchmarkPoint], limits: Limits) -> Carried:
    """What the curve says. Without limits: the level of the highest throughput."""
    ordered = sorted(points, key=lambda one: one.concurrency)
    if not ordered:
        return Carried(0, 0.0, at_least=False)
    if not limits.any:
        best = max(_sound(ordered), key=lambda one: (one.output_tokens_per_s, -one.concurrency), default=None)
        if best is None:
            return Carried(0, 0.0, at_least=False)
        return Carried(best.concurrency, best.output_tokens_per_s, at_least=False)
    below: BenchmarkPoint | None = None
    for one in ordered:
        if not _within(one, limits):
            return _between(below, one, limits)
        below = one
    assert below is not None
    return Carried(below.concurrency, below.output_tokens_per_s, at_least=True)


def _sound(points: Sequence[BenchmarkPoint]) -> list[BenchmarkPoint]:
    return [one for one in points if not _fails(one)]


def _fails(one: BenchmarkPoint) -> bool:
    return one.failed > FAILED_MOST * (one.requests + one.failed)


def _ttft(one: BenchmarkPoint) -> float | None:
    return one.ttft_s.p95


def _inter_token(one: BenchmarkPoint) -> float | None:
    return one.inter_token_s.p95 if one.inter_token_s is not None else None


def _checks(limits: Limits) -> list[tuple[float, Callable[[BenchmarkPoint], float | None]]]:
    checks: list[tuple[float, Callable[[BenchmarkPoint], float | None]]] = []
    if limits.ttft_p95_s is not None:
        checks.append((limits.ttft_p95_s, _ttft))
    if limits.inter_token_p95_s is not None:
        checks.append((limits.inter_token_p95_s, _inter_token))
    return checks


def _within(one: BenchmarkPoint, limits: Limits) -> bool:
    if _fails(one):
        return False
    for limit, of in _checks(limits):
        value = of(one)
        # A limit that was not measured is not met.
        if value is None or value > limit:
            return False
    return True


def _between(below: BenchmarkPoint | None, over: BenchmarkPoint, limits: Limits) -> Carried:
    """The last level within the limits, and as far towards the first beyond as the straight line allows."""
    if below is None:
        return Carried(0, 0.0, at_least=False)
    reach = over.concurrency - 1
    if _fails(over):
        reach = below.concurrency
    for limit, of in _checks(limits):
        low, high = of(below), of(over)
        if low is None or high is None:
            reach = below.concurrency
        elif high > limit:
            share = (limit - low) / (high - low)
            reach = min(reach, below.concurrency + floor(share * (over.concurrency - below.concurrency)))
    return Carried(max(below.concurrency, reach), below.output_tokens_per_s, at_least=False)


def answer(
    snapshot: Snapshot,
    verdicts: Verdicts,
    model: Model,
    runs: Sequence[BenchmarkRun],
    limits: Limits,
    now: float,
) -> CapacityAnswer:
    """One line for each profile that was measured; a warning for each that was not, or not lately enough."""
    lines: list[CapacityLine] = []
    warnings: list[str] = []
    emptied = _without_idle(snapshot, verdicts, model)
    for profile in model.profiles:
        run, stale = _newest(snapshot, model, profile, runs, now)
        command = f"llmgwctl bench run {model.name}"
        if run is None:
            warnings.append(f"profile {profile.name} on {profile.gpu_class} was never measured: {command}")
            continue
        found = carried(run.points, limits)
        if stale is not None:
            warnings.append(f"profile {profile.name}: measured of what is no longer so ({stale}): {command}")
        if found.at_least:
            last = run.points[-1].concurrency
            warnings.append(
                f"profile {profile.name}: measured up to {last} at a time, and that is within limits"
            )
        on_free = placeable(model, profile, rooms(snapshot, now))
        with_idle = placeable(model, profile, rooms(emptied, now))
        lines.append(
            CapacityLine(
                profile=profile.name,
                gpu_class=profile.gpu_class,
                run=run,
                carried=found,
                running=_running(snapshot, model, profile, now),
                on_free=on_free,
                after_reclaim=max(0, with_idle - on_free),
                stale_because=stale,
            )
        )
    if len(lines) > 1:
        warnings.append("profiles compete for GPUs: the counts of each assume that it gets all of them")
    return CapacityAnswer(tuple(lines), tuple(warnings))


def _newest(
    snapshot: Snapshot, model: Model, profile: Profile, runs: Sequence[BenchmarkRun], now: float
) -> tuple[BenchmarkRun | None, str | None]:
    """The newest run that holds, else the newest of all with why it does not."""
    mine = sorted(
        (run for run in runs if (run.model, run.profile) == (model.name, profile.name) and run.points),
        key=lambda run: run.at,
        reverse=True,
    )
    judged = [(run, stale_because(snapshot, run, now)) for run in mine]
    return next((pair for pair in judged if pair[1] is None), judged[0] if judged else (None, None))


def _running(snapshot: Snapshot, model: Model, profile: Profile, now: float) -> int:
    return sum(
        row.model == model.name and row.profile == profile.name and is_routable(row, snapshot, now)
        for row in snapshot.stored.replicas.values()
    )


def placeable(model: Model, profile: Profile, found: Rooms) -> int:
    """How many more the planner would place, one after another, until one is refused."""
    alone = replace(model, profiles=(profile,))
    memo = Memo()
    for count in range(COUNT_MOST):
        placed = place(alone, found, replica_id=_IMAGINED, group_epoch=1, memo=memo)
        if not isinstance(placed, Placement):
            return count
        for shard in placed.shards:
            ports = tuple(port for _, port in shard.ports)
            found = with_claim(found, model.name, _IMAGINED, shard.node_id, shard.device_ids, ports)
    return COUNT_MOST


def _without_idle(snapshot: Snapshot, verdicts: Verdicts, model: Model) -> Snapshot:
    """As it were with the idle replicas of other models gone, rows and engines alike."""
    gone = {
        name
        for name in idle_replicas(snapshot, verdicts)
        if snapshot.stored.replicas[name].model != model.name
    }
    kept = {name: row for name, row in snapshot.stored.replicas.items() if name not in gone}
    heard = {
        node_id: replace(
            one, shards={key: report for key, report in one.shards.items() if report.replica_id not in gone}
        )
        for node_id, one in snapshot.heard.items()
    }
    return replace(snapshot, stored=replace(snapshot.stored, replicas=kept), heard=heard)
