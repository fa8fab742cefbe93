"""`llmgwctl capacity`: how many at a time, within given latencies."""

from typing import Any

import click

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.as_json import head
from llmgw_controller.cli.exits import EXIT_NO_DATA, EXIT_TROUBLE
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.session import Session
from llmgw_controller.cli.views.common import first_line


class Latency(click.ParamType[float]):
    """`50ms`, `2s`: seconds."""

    name = "latency"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value)
        number, scale = (text[:-2], 0.001) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
        try:
            seconds = float(number) * scale
        except ValueError:
            seconds = 0.0
        if not text.endswith("s") or not 0 < seconds < 86_400:
            self.fail(f"{text!r} is no latency; expected a number of s or ms: 2s, 50ms", param, ctx)
        return seconds


@click.command()
@click.argument("model")
@click.option("--ttft-p95", type=Latency(), help="95 of 100 first tokens are to come within: 2s, 800ms.")
@click.option("--inter-token-p95", type=Latency(), help="95 of 100 requests are to have tokens every: 50ms.")
@click.pass_obj
def capacity(session: Session, model: str, ttft_p95: float | None, inter_token_p95: float | None) -> None:
    """How many requests at a time MODEL carries.

    Now, and on what is free, from stored benchmarks."""

    def render(page: Page, answer: pb.CapacityResponse) -> int:
        render_capacity(page, answer)
        return exit_code(answer)

    request = pb.CapacityRequest(model=model, ttft_p95_s=ttft_p95, inter_token_p95_s=inter_token_p95)
    session.show(
        lambda stub: stub.Capacity(request, timeout=30),
        render,
        lambda answer: capacity_json(answer, exit_code=exit_code(answer)),
    )


def exit_code(answer: pb.CapacityResponse) -> int:
    """2: nothing was measured; 1: something of it is stale; 0."""
    if not answer.lines:
        return EXIT_NO_DATA
    return EXIT_TROUBLE if any(line.HasField("stale_because") for line in answer.lines) else 0


def render_capacity(page: Page, answer: pb.CapacityResponse) -> None:
    now = sum(line.concurrent_per_replica * line.replicas_running for line in answer.lines)
    carried = f"carries {now} at a time now" if answer.lines else "was never measured"
    first_line(page, answer.info, f"{answer.model} {carried}")
    columns = [
        Column("PROFILE", most=18), Column("GPU", most=12), Column("A REPLICA", right=True),
        Column("TOKENS/S", right=True), Column("RUNNING", right=True), Column("ON FREE GPUS", right=True),
        Column("IF IDLE LEFT", right=True), Column("RUN", right=True),
    ]  # fmt: skip
    if answer.lines:
        table(page, columns, [_cells(line) for line in answer.lines])
        page.line(
            ("Concurrent requests, with the number of replicas; each column adds to the one before.", "dim")
        )
    for warning in answer.warnings:
        wrapped(page, [(" * ", "")], warning)


def _cells(line: pb.CapacityLine) -> tuple[str, ...]:
    each = line.concurrent_per_replica

    def users(replicas: int) -> str:
        return f"{each * replicas} ({replicas})"

    on_free = line.replicas_running + line.replicas_on_free
    return (
        line.profile, line.gpu_class, str(each), f"{line.output_tokens_per_s_per_replica:.1f}",
        users(line.replicas_running), users(on_free), users(on_free + line.replicas_after_reclaim),
        f"{line.run_id}{' *' if line.HasField('stale_because') else ''}",
    )  # fmt: skip


def capacity_json(answer: pb.CapacityResponse, *, exit_code: int) -> dict[str, Any]:
    return head("capacity", answer.info) | {
        "model": answer.model,
        "exit_code": exit_code,
        "lines": [
            {
                "profile": line.profile,
                "gpu_class": line.gpu_class,
                "run": line.run_id,
                "concurrent_per_replica": line.concurrent_per_replica,
                "output_tokens_per_s_per_replica": line.output_tokens_per_s_per_replica,
                "replicas_running": line.replicas_running,
                "replicas_on_free": line.replicas_on_free,
                "replicas_after_reclaim": line.replicas_after_reclaim,
                "concurrent_now": line.concurrent_per_replica * line.replicas_running,
                "stale_because": line.stale_because if line.HasField("stale_because") else None,
            }
            for line in answer.lines
        ],
        "warnings": list(answer.warnings),
    }
