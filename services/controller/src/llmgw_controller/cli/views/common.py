"""What several views share: the first line, idleness in a cell."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.page import Page, Piece
from llmgw_controller.cli.text import duration


def age(info: pb.ViewInfo) -> str:
    return f"data {duration(info.age_s)} old"


def first_line(page: Page, info: pb.ViewInfo, *more: str) -> None:
    """`data 2 s old · 36 replicas: 33 ready`."""
    page.line(" · ".join((age(info), *more)))


def idle_for(idleness: pb.Idleness, *, now: float) -> str:
    """`0` busy, a duration, `-` unknown."""
    kind = words.idleness(idleness)
    if kind == "busy":
        return "0"
    if kind == "idle" and idleness.HasField("since_unix_s"):
        return duration(now - idleness.since_unix_s)
    return "-"


def idle_seconds(idleness: pb.Idleness, *, now: float) -> int:
    """For the outermost JSON only (M2): 0 busy, -1 unknown."""
    kind = words.idleness(idleness)
    if kind == "busy":
        return 0
    if kind == "idle" and idleness.HasField("since_unix_s"):
        return max(0, int(now - idleness.since_unix_s))
    return -1


def number(message: pb.ReplicaRow | pb.ModelRow, field: str) -> str:
    """An optional count: `-` when absent."""
    return str(getattr(message, field)) if message.HasField(field) else "-"  # type: ignore[arg-type]


def marked(mark: Piece, name: str) -> list[Piece]:
    """A name with its trouble mark before it, so that names stand under each other."""
    return [(f"{mark[0]:2}", mark[1]), (f" {name}", "")]
