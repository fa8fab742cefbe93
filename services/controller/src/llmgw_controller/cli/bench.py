"""`llmgwctl bench`: measure what a replica carries, and what was measured before."""

import json
import sys
from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.as_json import head
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.session import Commands, Session
from llmgw_controller.cli.stream import each
from llmgw_controller.cli.terminal import say
from llmgw_controller.cli.text import count, duration, iso, moment
from llmgw_controller.cli.views.common import first_line
from llmgw_kit.errors import Conflict
from llmgw_kit.text import in_one_line, visible


@click.group(cls=Commands)
def bench() -> None:
    """Measure what a replica carries."""


#: As a server has connections, and more than any engine has slots.
CONCURRENCY_MOST = 65_535


class Levels(click.ParamType[tuple[int, ...]]):
    """`1,2,4`: rising."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            levels = tuple(int(one) for one in str(value).split(","))
        except ValueError:
            levels = ()
        if not levels or levels[0] < 1 or list(levels) != sorted(set(levels)):
            self.fail(f"{value!r} is no rising list; expected numbers such as 1,2,4,8", param, ctx)
        if levels[-1] > CONCURRENCY_MOST:
            self.fail(f"{levels[-1]} at a time is too many; expected at most {CONCURRENCY_MOST}", param, ctx)
        return levels


@bench.command("run")
@click.argument("model")
@click.option("--replica", help="This one; else one that no client uses.")
@click.option("--concurrency", type=Levels(), default=(), metavar="N,N,...",
              help="Rising; else 1, 2, 4, ... while throughput grows.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1, 1_000_000), help="A level; else at least 8, and 4 a slot.")
@click.option("--prompt-tokens", type=click.IntRange(1, 10_000_000), default=256, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1, 10_000_000), default=128, show_default=True)
@click.option("--level-timeout", type=click.FloatRange(min=1, max=3600), default=120.0, show_default=True,
              metavar="SECONDS", help="What is unfinished then has failed.")  # fmt: skip
@click.option("--force", is_flag=True, help="Also a replica that clients use now.")
@click.option("--dry-run", is_flag=True, help="Say what would be driven, and how long at most.")
@click.pass_obj
def bench_run(
    session: Session,
    model: str,
    replica: str | None,
    concurrency: tuple[int, ...],
    requests: int | None,
    prompt_tokens: int,
    output_tokens: int,
    level_timeout: float,
    *,
    force: bool,
    dry_run: bool,
) -> None:
    """Drive one replica of MODEL at rising concurrency.

    What is measured is stored. Ctrl-C ends it there."""
    request = pb.RunBenchmarkRequest(
        model=model, replica_id=replica, concurrency=concurrency, requests_per_level=requests or 0,
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, level_timeout_s=level_timeout, force=force,
        dry_run=dry_run,
    )  # fmt: skip
    shown = _Plan(session) if dry_run else _Json() if session.output == "json" else _Table()
    session.ask(lambda stub: each(stub.RunBenchmark(request), shown.take))


class _Plan:
    """What would be driven; of a dry run nothing else may come."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def take(self, message: pb.RunBenchmarkResponse) -> None:
        if not message.HasField("plan"):
            # What goes up from here ends the call, and so the run.
            raise Conflict(
                "the controller knows no dry run of a benchmark; it was stopped", code="older_controller",
                next_steps=["upgrade the controllers to this version"],
            )  # fmt: skip
        plan = message.plan
        levels = list(plan.concurrency)
        if self._session.output == "json":
            said = {
                "schema": "llmgw.bench-plan/1", "replica": plan.replica_id, "node": plan.node_id,
                "use": plan.use, "concurrency": levels, "requests_per_level": plan.requests_per_level or None,
                "at_most_seconds": plan.at_most_s,
            }  # fmt: skip
            click.echo(json.dumps(said, ensure_ascii=False))
            return
        page = Page(ascii_only=self._session.ascii_only)
        requests = plan.requests_per_level
        each_level = f"{requests} requests" if requests else "at least 8 requests and 4 a slot"
        text = (
            f"would drive {plan.replica_id} on {plan.node_id} ({_USE[plan.use]}) at "
            f"{', '.join(map(str, levels))} at a time, {each_level} a level; it takes "
            f"{duration(plan.at_most_s)} at most, and ends sooner where more brings no more or fails"
        )
        wrapped(page, [("dry run: ", "")], text)
        page.print()


_USE = {
    "idle": "idle", "busy": "clients use it", "unknown": "whether clients use it is unknown",
}  # fmt: skip


class _Json:
    """One object a line: each level, then the run."""

    def take(self, message: pb.RunBenchmarkResponse) -> None:
        if message.HasField("point"):
            said = {"schema": "llmgw.bench-point/1", **point_json(message.point)}
        elif message.HasField("run"):
            said = {"schema": "llmgw.bench-run/1", **run_json(message.run)}
        else:
            return
        click.echo(json.dumps(said, ensure_ascii=False))
        sys.stdout.flush()


class _Table:
    """Lines of a table as they are measured; below them, on a terminal, how far the present one is."""

    HEAD = "AT A TIME  REQUESTS  FAILED  TOKENS/S  TTFT p50     p95  BETWEEN TOKENS p50      p95"

    def __init__(self) -> None:
        self._began = False
        self._progress = 0
        self._live = sys.stderr.isatty()

    def take(self, message: pb.RunBenchmarkResponse) -> None:
        self._wipe()
        if message.HasField("progress") and self._live:
            text = in_one_line(message.progress)[:99]
            self._progress = len(text)
            click.echo(text, err=True, nl=False)
        if message.HasField("point"):
            if not self._began:
                click.echo(self.HEAD)
                self._began = True
            click.echo(_level(message.point))
            if message.point.HasField("failure"):
                why = visible(message.point.failure).partition("\n")[0][:70]
                say(f" * {message.point.failed} failed, one of them: {why}")
        if message.HasField("run"):
            run = message.run
            say(f"stored as run {run.run_id}: {run.model}, profile {run.profile}, {run.gpus} {run.gpu_class}")
            say(f"next: llmgwctl capacity {run.model} --ttft-p95 2s")
        sys.stdout.flush()

    def _wipe(self) -> None:
        if self._progress:
            click.echo("\r" + " " * self._progress + "\r", err=True, nl=False)
            self._progress = 0


def _level(one: pb.BenchmarkPoint) -> str:
    between = one.inter_token_s if one.HasField("inter_token_s") else None
    return (
        f"{one.concurrency:9}  {one.requests:8}  {one.failed:6}  {one.output_tokens_per_s:8.1f}"
        f"  {brief(one.ttft_s.p50):>8}{brief(one.ttft_s.p95):>8}"
        f"  {brief(between.p50 if between else None):>18}{brief(between.p95 if between else None):>9}"
    )


def brief(seconds: float | None) -> str:
    """`12.3 ms`, `1.24 s`. None is `-`."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


@bench.command("list")
@click.argument("model", required=False)
@click.pass_obj
def bench_list(session: Session, model: str | None) -> None:
    """What was measured, newest first.

    What says nothing any more is marked."""

    def render(page: Page, answer: pb.ListBenchmarksResponse) -> int:
        render_list(page, answer)
        return 0

    request = pb.ListBenchmarksRequest(model=model)
    session.show(lambda stub: stub.ListBenchmarks(request, timeout=10), render, list_json)


def render_list(page: Page, answer: pb.ListBenchmarksResponse) -> None:
    stale = [run for run in answer.runs if run.HasField("stale_because")]
    first_line(page, answer.info, f"{count(len(answer.runs), 'run')}, {len(stale)} stale")
    if not answer.runs:
        page.line("nothing was measured yet; to measure: llmgwctl bench run MODEL")
        return
    columns = [
        Column(""), Column("RUN", right=True), Column("WHEN"), Column("MODEL", most=20),
        Column("PROFILE", most=12), Column("GPUS", most=10), Column("LEVELS"), Column("TOKENS/S", right=True),
        Column("AT", right=True),
    ]  # fmt: skip
    rows = []
    for run in answer.runs:
        best = max(run.points, key=lambda one: one.output_tokens_per_s)
        levels = f"{run.points[0].concurrency} to {run.points[-1].concurrency}"
        rows.append(
            (
                " *" if run.HasField("stale_because") else "  ", str(run.run_id),
                moment(run.at_unix_s, now=answer.info.at_unix_s), run.model, run.profile,
                f"{run.gpus} {run.gpu_class}", levels, f"{best.output_tokens_per_s:.1f}",
                str(best.concurrency),
            )
        )  # fmt: skip
    table(page, columns, rows)
    for run in stale:
        wrapped(page, [(f" * run {run.run_id}  ", "")], f"says nothing any more: {run.stale_because}")
    for name in sorted({run.model for run in stale})[:1]:
        page.line((f"next: llmgwctl bench run {name}", "dim"))


def list_json(answer: pb.ListBenchmarksResponse) -> dict[str, Any]:
    return head("benchmarks", answer.info) | {"runs": [run_json(run) for run in answer.runs]}


def run_json(run: pb.BenchmarkRun) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "at": iso(run.at_unix_s),
        "model": run.model,
        "profile": run.profile,
        "gpu_class": run.gpu_class,
        "gpus": run.gpus,
        "spec_hash": run.spec_hash,
        "engine": run.engine,
        "engine_version": run.engine_version or None,
        "args": list(run.args),
        "weights_version": run.weights_version if run.HasField("weights_version") else None,
        "prompt_tokens": run.prompt_tokens,
        "output_tokens": run.output_tokens,
        "points": [point_json(one) for one in run.points],
        "stale_because": run.stale_because if run.HasField("stale_because") else None,
    }


def point_json(one: pb.BenchmarkPoint) -> dict[str, Any]:
    return {
        "concurrency": one.concurrency,
        "requests": one.requests,
        "failed": one.failed,
        "seconds": one.seconds,
        "output_tokens_per_s": one.output_tokens_per_s,
        "requests_per_s": one.requests_per_s,
        "ttft_seconds": _percentiles(one.ttft_s),
        "inter_token_seconds": _percentiles(one.inter_token_s) if one.HasField("inter_token_s") else None,
        "failure": one.failure if one.HasField("failure") else None,
    }


def _percentiles(one: pb.Percentiles) -> dict[str, float]:
    return {"p50": one.p50, "p90": one.p90, "p95": one.p95, "p99": one.p99}
