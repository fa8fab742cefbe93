"""`llmgwctl reclaim`: what may go and what it costs to bring back, what stays and why, what is unknown."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.text import count, duration, joined, moment
from llmgw_controller.cli.views.common import age
from llmgw_controller.cli.views.holdings import gpu_hours

#: Idle for less than this is nobody's news.
AFTER_S = 60.0
#: Of those that stay, and of the unknown for each reason, so many are named.
STAYS_SHOWN = 20
UNKNOWN_SHOWN = 6


def render(page: Page, answer: pb.ReclaimResponse, *, applied: bool, again: str) -> None:
    """`again`: the command to type to let go what is shown."""
    may = [one for one in answer.holdings if not one.HasField("kept_because")]
    stays = [one for one in answer.holdings if one.HasField("kept_because") and one.idle_s >= AFTER_S]
    page.line(f"{age(answer.info)} · {_sum(answer, len(may), applied=applied)}")
    if applied:
        for change in answer.changes:
            wrapped(page, [("  ", "")], change.text)
    elif may:
        page.blank()
        _may_go(page, may, now=answer.info.at_unix_s)
    if stays:
        page.blank()
        _stays(page, stays)
    _unknown(page, answer)
    page.blank()
    if applied:
        page.line(("Next: llmgwctl events --limit 10 · llmgwctl status", "dim"))
    else:
        page.line((f"Next: {again}" if may else "Next: llmgwctl status", "dim"))


def _sum(answer: pb.ReclaimResponse, replicas: int, *, applied: bool) -> str:
    if applied:
        if not answer.changes:
            return "nothing was let go: nothing is idle beyond doubt and free to go"
        return f"{count(len(answer.changes), 'replica')} with {count(answer.gpus, 'GPU')} let go"
    if not replicas:
        return "nothing may go"
    held = f"{count(answer.gpus, 'GPU')}, {gpu_hours(answer.gpu_hours)} GPU-hours unasked for"
    return f"{count(replicas, 'replica')} may go: {held}"


def _may_go(page: Page, found: list[pb.IdleHolding], *, now: float) -> None:
    columns = [
        Column("MAY GO", most=32),
        Column("HOLDS", right=True, most=20),
        Column("IDLE FOR", right=True),
        Column("LAST ASKED"),
        Column("GPU-HOURS", right=True),
        Column("RELOAD", right=True),
    ]
    rows = [
        (
            one.replica_id,
            f"{one.gpus} {one.gpu_class}",
            duration(one.idle_s),
            "never" if one.never_asked else moment(one.last_asked_unix_s, now=now),
            gpu_hours(one.gpu_hours),
            duration(one.reload_s) if one.HasField("reload_s") else "-",
        )
        for one in found
    ]
    table(page, columns, rows)


def _stays(page: Page, found: list[pb.IdleHolding]) -> None:
    columns = [
        Column("STAYS", most=32),
        Column("HOLDS", right=True, most=20),
        Column("IDLE FOR", right=True),
        Column("WHY", most=48),
    ]
    rows = [
        (
            one.replica_id,
            f"{one.gpus} {one.gpu_class}",
            duration(one.idle_s),
            one.kept_text or words.kept(one.kept_because),
        )
        for one in found[:STAYS_SHOWN]
    ]
    table(page, columns, rows)
    if len(found) > STAYS_SHOWN:
        page.line((f"… {len(found) - STAYS_SHOWN} more stay; all of them: --output json", "dim"))


def _unknown(page: Page, answer: pb.ReclaimResponse) -> None:
    if not answer.unknown:
        return
    page.blank()
    by_reason: dict[str, list[pb.UnknownHolding]] = {}
    for one in answer.unknown:
        by_reason.setdefault(one.reason, []).append(one)
    told = [
        f"{words.unknown_reason(reason)}: {joined([one.replica_id for one in found], most=UNKNOWN_SHOWN)} "
        f"({count(sum(one.gpus for one in found), 'GPU')})"
        for reason, found in sorted(by_reason.items())
    ]
    wrapped(page, [("UNKNOWN, not idle  ", "bold")], " · ".join(told))
