"""Usage bars per GPU class: exact numbers beside cells that add up."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.bars import PARTS, cells, legend, numbers_of
from llmgw_controller.cli.page import WIDTH, Page, Piece, wrapped
from llmgw_controller.cli.text import size_of

BAR = 54
#: Free, total and free memory stand behind the bar.
NAME_MOST = 20


def render(page: Page, status: pb.GetStatusResponse) -> None:
    rows = list(status.capacity)
    if not rows:
        page.line(("CAPACITY", "bold"), "  no node has said what it holds")
        page.blank()
        return
    if len(rows) > 1:
        rows.append(total(rows))
    name = min(NAME_MOST, max(len(row.gpu_class) for row in rows))
    bar = BAR - max(0, name - 4) - (WIDTH - page.width)
    memory = [_memory(row) for row in rows]
    wide = max(len("FREE MEMORY"), *(len(text) for text in memory))
    page.line(
        ("CAPACITY".ljust(name + 4 + bar), "bold"),
        (f"  {'FREE':>4}  {'TOTAL':>5}  {'FREE MEMORY':>{wide}}", "dim"),
    )
    for row, text in zip(rows, memory, strict=True):
        drawn = _bar(page, row.parts, bar)
        pad = " " * (bar - sum(len(piece) for piece, _ in drawn))
        page.line(
            f"  {_short(row.gpu_class):{name}}  ", *drawn, pad,
            f"  {row.parts.free:>4}  {row.total:>5}  {text:>{wide}}",
        )  # fmt: skip
        wrapped(page, [(" " * (name + 4), "")], legend(row.parts))
    page.blank()


def total(rows: list[pb.ClassCapacity]) -> pb.ClassCapacity:
    """All classes together; memory only where every class tells its own."""
    found = pb.ClassCapacity(gpu_class="all", total=sum(row.total for row in rows))
    for part in PARTS:
        setattr(found.parts, part.name, sum(getattr(row.parts, part.name) for row in rows))
    if all(row.HasField("memory_total_bytes") for row in rows):
        found.memory_total_bytes = sum(row.memory_total_bytes for row in rows)
    if all(row.HasField("memory_free_bytes") for row in rows):
        found.memory_free_bytes = sum(row.memory_free_bytes for row in rows)
    return found


def _short(name: str) -> str:
    return name if len(name) <= NAME_MOST else name[: NAME_MOST - 1] + "…"


def _bar(page: Page, parts: pb.DeviceParts, width: int) -> list[Piece]:
    shares = cells(numbers_of(parts), width)
    return [
        ((part.ascii if page.ascii_only else part.glyph) * share, part.style)
        for part, share in zip(PARTS, shares, strict=True)
        if share
    ]


def _memory(row: pb.ClassCapacity) -> str:
    if not row.HasField("memory_total_bytes"):
        return "-"
    free = row.memory_free_bytes if row.HasField("memory_free_bytes") else None
    return size_of(free, row.memory_total_bytes)
