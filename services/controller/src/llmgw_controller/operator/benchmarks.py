"""Benchmarks: driven on a node, stored, listed, and what capacity follows from them."""

import asyncio
import logging
from collections.abc import AsyncIterator

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller import wire_benchmarks
from llmgw_controller.core.activity import Busy, Idle, Verdict, Verdicts
from llmgw_controller.core.benchmarks import BenchmarkPoint, run_of, stale_because
from llmgw_controller.core.capacity_answer import Limits, answer
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.replica import is_routable
from llmgw_controller.core.rows import ReplicaRow, ShardRow
from llmgw_controller.core.state import Snapshot
from llmgw_controller.operator.desk import Context, Desk
from llmgw_controller.ports import Fenced
from llmgw_controller.reign import Reign
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound, Unavailable
from llmgw_kit.ids import ReplicaId
from llmgw_kit.names import did_you_mean

log = logging.getLogger(__name__)

#: What a request asks for unless told: a question of some paragraphs, an answer of one.
PROMPT_TOKENS, OUTPUT_TOKENS, LEVEL_TIMEOUT_S = 256, 128, 120.0
TOKENS_MOST, CONCURRENCY_MOST, REQUESTS_MOST, LEVELS_MOST = 1_000_000, 4096, 100_000, 32
LEVEL_TIMEOUT_MOST_S = 3600.0
#: What an agent drives when it is told no level, as far as throughput grows.
LEVELS = tuple(2**power for power in range(10))
#: The agent says something at least each level; so much longer than its time limit is silence.
GRACE_S = 30.0


class Benchmarks(Desk):
    """The calls on benchmarks and capacity."""

    async def RunBenchmark(
        self, request: pb.RunBenchmarkRequest, context: Context
    ) -> AsyncIterator[pb.RunBenchmarkResponse]:
        """Drive one ready replica through its own node's agent; a run that ends is stored, another is not.
        A dry run only says which, how far, and how long at most."""
        reign = await self._reign()
        load = _load(request)
        model = self._model(reign, request.model)
        snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
        judged = await asyncio.to_thread(verdicts, snapshot, now)
        row, head = _target(snapshot, judged, model, request, now)
        verdict = judged.by_replica.get(row.replica_id)
        if request.dry_run:
            yield pb.RunBenchmarkResponse(plan=_plan(row, head, verdict, load))
            return
        told = f"{row.replica_id} on {head.node_id}: a first request"
        if _use(verdict) == "unknown":
            told += "; whether clients use it is unknown"
        yield pb.RunBenchmarkResponse(progress=told)

        def command(command_id: str) -> agent_pb2.ConnectResponse:
            message = agent_pb2.ConnectResponse(drive_benchmark=load)
            message.drive_benchmark.command_id = command_id
            message.drive_benchmark.shard_id = head.shard_id
            return message

        points: list[BenchmarkPoint] = []
        try:
            async with reign.fleet.asks.asking(head.node_id, command) as ask:
                while True:
                    report = await ask.next(load.level_timeout_s + GRACE_S)
                    if isinstance(report, agent_pb2.CommandResult):
                        raise Conflict(f"{head.node_id}: {report.message}", code="benchmark_refused")
                    assert isinstance(report, agent_pb2.BenchmarkReport), "no log was asked for"
                    if report.HasField("error"):
                        raise Unavailable(
                            f"{row.replica_id} was not measured to its end, nothing stored: {report.error}",
                            code="benchmark_failed",
                        )
                    if report.end:
                        break
                    if report.HasField("progress"):
                        how = report.progress
                        text = f"{how.concurrency} at a time: {how.finished} of {how.requests} requests"
                        yield pb.RunBenchmarkResponse(progress=text)
                    elif (point := wire_benchmarks.point_from(report.level)) is not None:
                        points.append(point)
                        measured = pb.RunBenchmarkResponse(point=wire_benchmarks.point_to(point))
                        if report.level.HasField("failure"):
                            measured.point.failure = report.level.failure
                        yield measured
            yield pb.RunBenchmarkResponse(run=await self._store(reign, model, row, points, load))
        except Fenced:
            raise self._office.not_leading() from None

    async def _store(
        self,
        reign: Reign,
        model: Model,
        row: ReplicaRow,
        points: list[BenchmarkPoint],
        load: agent_pb2.DriveBenchmark,
    ) -> pb.BenchmarkRun:
        run = run_of(
            reign.snapshot(reign.ledger.stored), model, row, points,
            prompt_tokens=load.prompt_tokens, output_tokens=load.output_tokens, at=reign.tenure.now(),
        )  # fmt: skip
        if run is None or not points:
            raise Conflict(
                f"{row.replica_id} is not what the catalog says any more; nothing is stored",
                code="spec_changed",
            )
        run_id = await reign.world.store.put_benchmark(reign.tenure.term, run)
        log.info("benchmark %d of %s stored, %d levels", run_id, row.replica_id, len(points))
        return wire_benchmarks.run_to(run, run_id=run_id, stale=None)

    async def ListBenchmarks(
        self, request: pb.ListBenchmarksRequest, context: Context
    ) -> pb.ListBenchmarksResponse:
        """Newest first, each with why it says nothing any more, if so."""
        reign, view = await self._view()
        name = None
        if request.HasField("model"):
            model = reign.ledger.catalog.resolve(request.model)
            name = model.name if model is not None else request.model
        runs = await reign.world.store.benchmarks(name)
        if name is not None and not runs and name not in reign.ledger.catalog.models:
            raise self._no_model(reign, request.model)
        snapshot = reign.snapshot(reign.ledger.stored)
        return pb.ListBenchmarksResponse(
            info=self._info(reign, view),
            runs=[wire_benchmarks.run_to(run, stale=stale_because(snapshot, run, view.at)) for run in runs],
        )

    async def Capacity(self, request: pb.CapacityRequest, context: Context) -> pb.CapacityResponse:
        """From the newest run of each profile."""
        reign, view = await self._view()
        model = self._model(reign, request.model)
        limits = Limits(
            ttft_p95_s=request.ttft_p95_s if request.HasField("ttft_p95_s") else None,
            inter_token_p95_s=request.inter_token_p95_s if request.HasField("inter_token_p95_s") else None,
        )
        for name, value in (("ttft_p95", limits.ttft_p95_s), ("inter_token_p95", limits.inter_token_p95_s)):
            if value is not None and not 0 < value < 86_400:
                raise InvalidRequest(f"{name} is {value:g} s; a limit is more than 0 and less than a day")
        runs = await reign.world.store.benchmarks(model.name)
        snapshot = reign.snapshot(reign.ledger.stored)
        judged = verdicts(snapshot, view.at)
        found = await asyncio.to_thread(answer, snapshot, judged, model, runs, limits, view.at)
        return pb.CapacityResponse(
            info=self._info(reign, view),
            model=model.name,
            lines=[wire_benchmarks.line_to(line) for line in found.lines],
            warnings=found.warnings,
        )


def _load(request: pb.RunBenchmarkRequest) -> agent_pb2.DriveBenchmark:
    """With defaults for what was left out. Raises InvalidRequest for what cannot be driven."""
    levels = list(request.concurrency)
    if levels != sorted(set(levels)) or any(not 1 <= level <= CONCURRENCY_MOST for level in levels):
        raise InvalidRequest(
            f"concurrency {','.join(map(str, levels))} does not rise from 1 to at most {CONCURRENCY_MOST}",
            next_steps=["such as 1,2,4,8"],
        )
    if len(levels) > LEVELS_MOST:
        raise InvalidRequest(f"{len(levels)} levels of concurrency; at most {LEVELS_MOST}")
    load = agent_pb2.DriveBenchmark(
        concurrency=levels,
        requests_per_level=request.requests_per_level,
        prompt_tokens=request.prompt_tokens or PROMPT_TOKENS,
        output_tokens=request.output_tokens or OUTPUT_TOKENS,
        level_timeout_s=request.level_timeout_s or LEVEL_TIMEOUT_S,
    )
    if load.requests_per_level > REQUESTS_MOST:
        raise InvalidRequest(f"{load.requests_per_level} requests a level; at most {REQUESTS_MOST}")
    if max(load.prompt_tokens, load.output_tokens) > TOKENS_MOST:
        raise InvalidRequest(f"more than {TOKENS_MOST} tokens in a prompt or an answer")
    if not 0 < load.level_timeout_s <= LEVEL_TIMEOUT_MOST_S:
        raise InvalidRequest(
            f"a level may take up to {LEVEL_TIMEOUT_MOST_S:g} s, not {load.level_timeout_s:g}"
        )
    return load


def _target(
    snapshot: Snapshot, judged: Verdicts, model: Model, request: pb.RunBenchmarkRequest, now: float
) -> tuple[ReplicaRow, ShardRow]:
    """The replica to drive, with its head: the named one, else one that nobody uses. Raises NotFound,
    and Conflict when none is ready or clients use all."""
    rows = [row for _, row in sorted(snapshot.stored.replicas.items()) if row.model == model.name]
    ready = [row for row in rows if is_routable(row, snapshot, now)]
    if request.HasField("replica_id"):
        named = snapshot.stored.replicas.get(ReplicaId(request.replica_id))
        if named is None or named.model != model.name:
            names = [row.replica_id for row in rows]
            raise NotFound(
                f"{model.name} has no replica {request.replica_id}{did_you_mean(request.replica_id, names)}",
                code="replica_not_found", next_steps=[f"try: llmgwctl replicas --model {model.name}"],
            )  # fmt: skip
        if named not in ready:
            raise Conflict(
                f"{named.replica_id} is {named.phase.value}, not ready", code="not_ready",
                next_steps=[f"try: llmgwctl replicas --model {model.name}"],
            )  # fmt: skip
        ready = [named]
    if not ready:
        steps = [f"try: llmgwctl model activate {model.name}"] if not rows else []
        raise Conflict(
            f"{model.name} has no ready replica to measure", code="not_ready",
            next_steps=[*steps, f"see: llmgwctl why {model.name}"],
        )  # fmt: skip
    quiet = [row for row in ready if not isinstance(judged.by_replica.get(row.replica_id), Busy)]
    if not quiet and not request.force:
        told = ", ".join(row.replica_id for row in ready)
        raise Conflict(
            f"clients use {told} now: they would disturb what is measured, and be disturbed", code="busy",
            next_steps=["wait until one is idle, or measure all the same with --force"],
        )  # fmt: skip
    # What is known to be idle goes before what may be in use and nobody knows.
    row = min(quiet or ready, key=lambda row: _use(judged.by_replica.get(row.replica_id)) != "idle")
    return row, min(row.shards, key=lambda shard: shard.rank)


def _use(verdict: Verdict | None) -> str:
    match verdict:
        case Busy():
            return "busy"
        case Idle():
            return "idle"
        case _:
            return "unknown"


def _plan(
    row: ReplicaRow, head: ShardRow, verdict: Verdict | None, load: agent_pb2.DriveBenchmark
) -> pb.BenchmarkPlan:
    levels = list(load.concurrency) or LEVELS
    return pb.BenchmarkPlan(
        replica_id=row.replica_id,
        node_id=head.node_id,
        use=_use(verdict),
        concurrency=levels,
        requests_per_level=load.requests_per_level,
        # A first request is limited as a level is.
        at_most_s=(len(levels) + 1) * load.level_timeout_s,
    )
