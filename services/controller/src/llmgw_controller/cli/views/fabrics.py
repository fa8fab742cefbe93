"""Fabrics: where a replica of several nodes can land; a section of `status`, and `llmgwctl fabrics`."""

from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli.bars import device_cells
from llmgw_controller.cli.page import Column, Page, Piece, table, wrapped
from llmgw_controller.cli.text import count
from llmgw_controller.cli.views.common import first_line

#: Nodes named in the line on single losses.
NAMED = 3


def render_section(page: Page, status: pb.GetStatusResponse) -> None:
    """In `status`: the table and what one node's end would do."""
    if not any(row.fabric for row in status.fabrics):
        page.line(("FABRICS     ", "bold"), "none declared: replicas stay on one node")
    else:
        _table(page, status)
    _risk(page, status)


def render(page: Page, status: pb.GetStatusResponse, nodes: pb.ListNodesResponse) -> None:
    """`llmgwctl fabrics`: the same table, and a map of each fabric's nodes."""
    declared = [row.fabric for row in status.fabrics if row.fabric]
    first_line(page, status.info, count(len(declared), "fabric"))
    if not declared:
        page.line("none declared: replicas stay on one node; an agent names its own with --fabric NAME")
        _risk(page, status)
        return
    _table(page, status)
    _risk(page, status)
    for row in status.fabrics:
        mine = [n for n in nodes.nodes if row.fabric in n.fabrics or (not row.fabric and not n.fabrics)]
        page.blank()
        classes = ", ".join(row.gpu_classes) or "no GPUs"
        page.line((row.fabric or "(none)", "bold"), f"  {classes}")
        _map(page, sorted(mine, key=lambda node: node.node_id))
    page.blank()
    page.line(("Next: llmgwctl nodes · llmgwctl status", "dim"))


def _table(page: Page, status: pb.GetStatusResponse) -> None:
    columns = [
        Column("FABRICS", most=20),
        Column("NODES", right=True),
        Column("WHOLE FREE", right=True),
        Column("IF IDLE LEFT", right=True),
        Column("LARGEST FIT NOW"),
        Column("IF IDLE LEFT"),
    ]
    rows = [
        (
            f"  {row.fabric or '(none)'}",
            str(row.nodes),
            str(row.whole_free),
            str(row.whole_free_if_idle_left),
            _fit(row, "largest_fit"),
            _fit(row, "largest_fit_if_idle_left"),
        )
        for row in status.fabrics
    ]
    table(page, columns, rows)


def _fit(row: pb.FabricRow, field: str) -> str:
    """`2 × 8 H100`: nodes by GPUs each; on no fabric there is one node: `2 L40S`."""
    if not row.HasField(field):  # type: ignore[arg-type]
        return "nothing"
    fit: pb.LargestFit = getattr(row, field)
    alone = f"{fit.gpus_per_node} {fit.gpu_class}"
    return f"{fit.nodes} × {alone}" if row.fabric else alone


def _risk(page: Page, status: pb.GetStatusResponse) -> None:
    """The standing N-1 line."""
    nodes = status.nodes.heard
    if not status.risks_known or not nodes:
        return
    if not status.risks:
        wrapped(page, [("  ", "")], f"If one node dies: all of {nodes} are spare.")
        return
    spare = max(0, nodes - len(status.risks))
    worst = sorted(status.risks, key=lambda risk: (-len(risk.homeless_replica_ids), risk.node_id))
    told = "; ".join(risk.text for risk in worst[:NAMED])
    more = f"; and {len(worst) - NAMED} more" if len(worst) > NAMED else ""
    wrapped(page, [("  ", "")], f"If one node dies: {spare} of {nodes} are spare; {told}{more}.")


def _map(page: Page, nodes: list[pb.NodeRow]) -> None:
    """Nodes side by side, one glyph a GPU."""
    cells = [device_cells(node.devices, ascii_only=page.ascii_only) for node in nodes]
    name = max((len(node.node_id) for node in nodes), default=0)
    bar = max((len(found) for found in cells), default=0)
    each = name + bar + 4
    across = max(1, (page.width - 2) // each)
    for start in range(0, len(nodes), across):
        pieces: list[Piece] = [("  ", "")]
        for node, found in zip(nodes[start : start + across], cells[start : start + across], strict=True):
            pieces.append((f"{node.node_id:{name}} ", ""))
            pieces.extend(found)
            pieces.append((" " * (bar - len(found) + 3), ""))
        page.line(*pieces)
