"""`llmgwctl status`: trouble first, then what can be placed, then what can be stopped."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.bars import PARTS, cells, legend, numbers_of
from llmgw_controller.cli.page import WIDTH, Column, Page, Piece, table, wrapped
from llmgw_controller.cli.text import count, moment, size_of
from llmgw_controller.cli.views.common import age, idle_for

BAR = 40
#: Idle for less than this is nobody's news.
NOBODY_ASKED_AFTER_S = 60.0


def render(page: Page, status: pb.GetStatusResponse) -> None:
    _head(page, status)
    _trouble(page, status)
    _capacity(page, status)
    _fabrics(page, status)
    page.blank()
    _models(page, status)
    _nobody_asked(page, status)
    _next(page, status)


def exit_code(status: pb.GetStatusResponse) -> int:
    """0 fine, 1 trouble."""
    return int(any(t.severity == pb.TROUBLE_SEVERITY_TROUBLE for t in status.trouble))


def _head(page: Page, status: pb.GetStatusResponse) -> None:
    info, nodes, routers = status.info, status.nodes, status.routers
    lead = [info.cluster, f"leader {info.leader_name}, term {info.term}", age(info)]
    if info.store == "memory":
        lead.append("in memory: nothing survives a restart")
    if info.learning:
        lead.append("learning")
    rest = [
        f"nodes {nodes.heard} heard, {nodes.silent} silent, {nodes.lost} lost",
        f"routers {routers.heard} of {routers.members}",
    ]
    line = " · ".join(lead + rest)
    if len(line) <= WIDTH:
        page.line(line)
    else:
        page.line(" · ".join(lead))
        page.line(" · ".join(rest))
    page.blank()


def _trouble(page: Page, status: pb.GetStatusResponse) -> None:
    if not status.trouble:
        page.line("No trouble.")
        page.blank()
        return
    bad = sum(t.severity == pb.TROUBLE_SEVERITY_TROUBLE for t in status.trouble)
    page.line(("TROUBLE", "bold"), f"  {bad}" if bad else "  none; to know:")
    width = min(24, max(len(t.subject) for t in status.trouble))
    for t in status.trouble:
        wrapped(page, [words.mark(t.severity), (f" {t.subject:{width}}  ", "")], t.text)
        if t.HasField("fix"):
            page.line(" " * (width + 5), (t.fix, "dim"))
    page.blank()


def _bar(page: Page, parts: pb.DeviceParts, width: int) -> list[Piece]:
    shares = cells(numbers_of(parts), width)
    return [
        ((part.ascii if page.ascii_only else part.glyph) * share, part.style)
        for part, share in zip(PARTS, shares, strict=True)
        if share
    ]


def _capacity(page: Page, status: pb.GetStatusResponse) -> None:
    page_lines = list(status.capacity)
    if not page_lines:
        page.line(("CAPACITY", "bold"), "  no node has said what it holds")
        page.blank()
        return
    if len(page_lines) > 1:
        page_lines.append(_sum(page_lines))
    name = max(len(row.gpu_class) for row in page_lines)
    memory = [_memory(row) for row in page_lines]
    wide = max(len("FREE MEMORY"), *(len(text) for text in memory))
    page.line(
        ("CAPACITY".ljust(name + 4 + BAR), "bold"),
        (f"  {'FREE':>5}  {'TOTAL':>6}  {'FREE MEMORY':>{wide}}", "dim"),
    )
    for row, text in zip(page_lines, memory, strict=True):
        bar = _bar(page, row.parts, BAR)
        pad = " " * (BAR - sum(len(piece) for piece, _ in bar))
        page.line(
            f"  {row.gpu_class:{name}}  ", *bar, pad, f"  {row.parts.free:>5}  {row.total:>6}  {text:>{wide}}"
        )
        page.line(" " * (name + 4), legend(row.parts))
    page.blank()


def _memory(row: pb.ClassCapacity) -> str:
    if not row.HasField("memory_total_bytes"):
        return "-"
    free = row.memory_free_bytes if row.HasField("memory_free_bytes") else None
    return size_of(free, row.memory_total_bytes)


def _sum(rows: list[pb.ClassCapacity]) -> pb.ClassCapacity:
    total = pb.ClassCapacity(gpu_class="all", total=sum(row.total for row in rows))
    for part in PARTS:
        setattr(total.parts, part.name, sum(getattr(row.parts, part.name) for row in rows))
    if all(row.HasField("memory_total_bytes") for row in rows):
        total.memory_total_bytes = sum(row.memory_total_bytes for row in rows)
    if all(row.HasField("memory_free_bytes") for row in rows):
        total.memory_free_bytes = sum(row.memory_free_bytes for row in rows)
    return total


def _fabrics(page: Page, status: pb.GetStatusResponse) -> None:
    if not any(row.fabric for row in status.fabrics):
        page.line(("FABRICS".ljust(14), "bold"), "none declared: replicas stay on one node")
        return
    page.line(("FABRICS", "bold"))
    columns = [
        Column("FABRIC"),
        Column("NODES", right=True),
        Column("WHOLE FREE", right=True),
        Column("IF IDLE LEFT", right=True),
        Column("CLASSES"),
    ]
    rows = [
        (
            row.fabric or "(none)",
            str(row.nodes),
            str(row.whole_free),
            str(row.whole_free_if_idle_left),
            ", ".join(row.gpu_classes),
        )
        for row in status.fabrics
    ]
    table(page, columns, rows, indent="  ")


def _models(page: Page, status: pb.GetStatusResponse) -> None:
    by: dict[str, int] = {}
    for model in status.models:
        word = words.availability(model.availability)
        by[word] = by.get(word, 0) + 1
    shown = ", ".join(
        f"{by[word]} {word}" for word in ("ready", "starting", "cold", "unavailable") if word in by
    )
    flying = [m.in_flight for m in status.models if m.HasField("in_flight")]
    in_flight = "-" if len(flying) < sum(m.ready > 0 for m in status.models) else str(sum(flying))
    held = sum(m.held for m in status.models)
    page.line(
        ("MODELS".ljust(14), "bold"),
        f"{len(status.models)}: {shown or 'none'} · in flight {in_flight}, held {held}",
    )


def _nobody_asked(page: Page, status: pb.GetStatusResponse) -> None:
    now = status.info.at_unix_s
    ready = [r for r in status.replicas if r.phase == pb.REPLICA_PHASE_READY]
    idle = [
        r
        for r in ready
        if words.idleness(r.idleness) == "idle" and now - r.idleness.since_unix_s >= NOBODY_ASKED_AFTER_S
    ]
    idle.sort(key=lambda r: (-r.gpus * (now - r.idleness.since_unix_s), r.replica_id))
    if not idle:
        page.line(("NOBODY ASKED".ljust(14), "bold"), "none")
    else:
        page.line(("NOBODY ASKED", "bold"))
        columns = [
            Column("REPLICA"),
            Column("HOLDS", right=True),
            Column("IDLE FOR", right=True),
            Column("LAST ASKED"),
            Column("GPU-HOURS", right=True),
        ]
        rows = [
            (
                r.replica_id,
                count(r.gpus, "GPU"),
                idle_for(r.idleness, now=now),
                "never" if r.idleness.never_asked else moment(r.last_asked_unix_s, now=now),
                f"{r.gpus * (now - r.idleness.since_unix_s) / 3600:.1f}",
            )
            for r in idle
        ]
        table(page, columns, rows, indent="  ")
    unknown = [r for r in ready if words.idleness(r.idleness) == "unknown"]
    listed = " · ".join(
        f"{r.replica_id} ({words.unknown_reason(r.idleness.unknown_reason)})" for r in unknown[:4]
    )
    if len(unknown) > 4:
        listed += f" · {len(unknown) - 4} more"
    page.line(("UNKNOWN".ljust(14), "bold"), f"{listed}: not idle" if unknown else "none")


def _next(page: Page, status: pb.GetStatusResponse) -> None:
    steps = [t.fix for t in status.trouble if t.HasField("fix") and t.fix.startswith("llmgwctl ")]
    unplaceable = [t.subject for t in status.trouble if t.kind == "unplaceable"]
    steps += [f"llmgwctl why {subject}" for subject in unplaceable]
    cold = [m.model for m in status.models if words.availability(m.availability) == "cold"]
    if not steps and cold:
        steps = [f"llmgwctl why {cold[0]}", "llmgwctl models"]
    page.blank()
    page.line(
        (f"Next: {' · '.join(dict.fromkeys(steps[:2])) or 'llmgwctl replicas · llmgwctl models'}", "dim")
    )
