"""Nobody asked: what idle replicas hold, with its price; and apart from it, what nobody can tell of."""

from collections.abc import Sequence

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Column, Page, table, wrapped
from llmgw_controller.cli.text import count, duration, moment

#: Idle for less than this is nobody's news.
AFTER_S = 60.0
SHOWN = 10
UNKNOWN_SHOWN = 6


def render(page: Page, status: pb.GetStatusResponse) -> None:
    """In `status`."""
    found = holdings(status)
    if not found:
        page.line(("NOBODY ASKED  ", "bold"), "none")
    else:
        _table(page, found, now=status.info.at_unix_s)
    render_unknown(page, status)


def holdings(status: pb.GetStatusResponse) -> list[pb.IdleHolding]:
    """As the controller prices and orders them; those idle for less than a minute are left out."""
    return [one for one in status.nobody_asked if one.idle_s >= AFTER_S]


def _table(page: Page, found: Sequence[pb.IdleHolding], *, now: float) -> None:
    columns = [
        Column("NOBODY ASKED", most=32),
        Column("HOLDS", right=True, most=20),
        Column("IDLE FOR", right=True),
        Column("LAST ASKED"),
        Column("GPU-HOURS", right=True),
        Column("RELOAD", right=True),
        Column("STAYS"),
    ]
    rows: list[tuple[str, ...]] = [
        (
            f"  {one.replica_id}",
            f"{one.gpus} {one.gpu_class}" if one.gpu_class else count(one.gpus, "GPU"),
            duration(one.idle_s),
            _asked(one, now=now),
            gpu_hours(one.gpu_hours),
            duration(one.reload_s) if one.HasField("reload_s") else "-",
            words.kept(one.kept_because) if one.HasField("kept_because") else "",
        )
        for one in found[:SHOWN]
    ]
    if len(found) > 1:
        held, hours = sum(one.gpus for one in found), sum(one.gpu_hours for one in found)
        rows.append(
            (f"  {count(len(found), 'replica')}", count(held, "GPU"), "", "", gpu_hours(hours), "", "")
        )
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    table(page, columns, rows)


def _asked(one: pb.IdleHolding, *, now: float) -> str:
    if one.never_asked:
        return "never"
    return moment(one.last_asked_unix_s, now=now) if one.HasField("last_asked_unix_s") else "-"


def gpu_hours(hours: float) -> str:
    """`946`, `0.7`: one digit where it is little."""
    return f"{hours:.0f}" if hours >= 10 else f"{hours:.1f}"


def render_unknown(page: Page, status: pb.GetStatusResponse) -> None:
    """Never among the idle: nobody watched them without a gap."""
    ready = [r for r in status.replicas if r.phase == pb.REPLICA_PHASE_READY]
    unknown = [r for r in ready if words.idleness(r.idleness) == "unknown"]
    if not unknown:
        page.line(("UNKNOWN       ", "bold"), "none")
        return
    by_reason: dict[str, list[str]] = {}
    for row in unknown[:UNKNOWN_SHOWN]:
        by_reason.setdefault(words.unknown_reason(row.idleness.unknown_reason), []).append(row.replica_id)
    told = " · ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    if len(unknown) > UNKNOWN_SHOWN:
        told += f" · {len(unknown) - UNKNOWN_SHOWN} more"
    wrapped(page, [("UNKNOWN, not idle  ", "bold")], told)
