"""`llmgwctl nodes` and `llmgwctl gpus`."""

from collections import Counter
from collections.abc import Sequence

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.bars import BY_NAME, PARTS, USE_PART, progress
from llmgw_controller.cli.page import Column, Page, Piece, table
from llmgw_controller.cli.text import count, duration, joined, size_of
from llmgw_controller.cli.views.common import first_line, idle_for

SHOWN = 14


def render_nodes(page: Page, answer: pb.ListNodesResponse, *, every: bool) -> None:
    rows = sorted(answer.nodes, key=lambda node: (_rank(node), node.node_id))
    first_line(page, answer.info, count(len(rows), "node") + (", trouble first" if rows else ""))
    if not rows:
        page.line("no agent has registered yet; on a node: llmgw-agent serve --controller HOST:PORT")
        return
    columns = [
        Column(""),
        Column("NODE", most=24),
        Column("FABRIC", most=12),
        Column("GPUS", most=20),
        Column("USE"),
        Column("STATE"),
        Column("BEAT", right=True),
        Column("HOLDS", most=40),
    ]
    shown = rows if every else rows[:SHOWN]
    table(
        page,
        columns,
        [
            (
                _mark(node),
                node.node_id,
                ", ".join(node.fabrics) or "-",
                _classes(node),
                _cells(page, node),
                words.node_state(node),
                duration(node.beat_age_s) if node.HasField("beat_age_s") else "-",
                _holds(node),
            )
            for node in shown
        ],
    )
    if len(shown) < len(rows):
        page.line(f"… {len(rows) - len(shown)} more.  llmgwctl nodes --all")


def _rank(node: pb.NodeRow) -> int:
    if node.state in (pb.NODE_STATE_UNREACHABLE, pb.NODE_STATE_LOST):
        return 0
    if any(d.device.state != agent_pb2.DEVICE_STATE_HEALTHY for d in node.devices):
        return 1
    return 2 if node.schedulability != pb.SCHEDULABILITY_SCHEDULABLE else 3


def _mark(node: pb.NodeRow) -> Piece:
    return (("!!", "bold red"), ("!!", "bold red"), (" *", ""), ("", ""))[_rank(node)]


def _classes(node: pb.NodeRow) -> str:
    classes = Counter(d.device.gpu_class for d in node.devices)
    return ", ".join(f"{n} {name}" for name, n in sorted(classes.items())) or "none"


def _cells(page: Page, node: pb.NodeRow) -> list[Piece]:
    """One glyph a device, in its own order."""
    parts = [BY_NAME[USE_PART[d.use]] for d in sorted(node.devices, key=lambda d: d.device.index)]
    return [(part.ascii if page.ascii_only else part.glyph, part.style) for part in parts]


def _holds(node: pb.NodeRow) -> str:
    if node.replica_ids:
        return joined(sorted(node.replica_ids), most=3)
    free = [d for d in node.devices if d.use == pb.DEVICE_USE_FREE]
    return "nothing, a whole node" if free and len(free) == len(node.devices) else "nothing"


def render_gpus(page: Page, answer: pb.ListDevicesResponse) -> None:
    by_node: dict[str, list[pb.DeviceRow]] = {}
    for row in answer.devices:
        by_node.setdefault(row.node_id, []).append(row)
    if not by_node:
        first_line(page, answer.info, "no GPUs")
        page.line("no agent has said what its node holds; see: llmgwctl nodes")
        return
    first_line(page, answer.info, count(len(answer.devices), "GPU") + " on " + count(len(by_node), "node"))
    for node_id in sorted(by_node):
        page.blank()
        _render_node(
            page, node_id, sorted(by_node[node_id], key=lambda d: d.device.index), answer.info.at_unix_s
        )


def _render_node(page: Page, node_id: str, rows: Sequence[pb.DeviceRow], now: float) -> None:
    states = Counter(words.device_state(row.device) for row in rows)
    page.line((node_id, "bold"), " · ", ", ".join(f"{states[word]} {word}" for word in sorted(states)))
    columns = [
        Column("GPU", right=True),
        Column("CLASS"),
        Column("STATE"),
        Column("REPLICA", most=32),
        Column("IDLE", right=True),
        Column("MEMORY"),
        Column("TEMP", right=True),
        Column("POWER", right=True),
    ]
    table(page, columns, [_device(page, row, now) for row in rows])
    uses = Counter(USE_PART[row.use] for row in rows)
    total = " + ".join(f"{uses[part.name]} {part.name}" for part in PARTS if uses[part.name])
    page.line((f"{len(rows)} = {total}", "dim"))


def _device(page: Page, row: pb.DeviceRow, now: float) -> tuple[str | Piece, ...]:
    device = row.device
    state: Piece = (USE_PART[row.use], "")
    replica = row.replica_id if row.HasField("replica_id") else ""
    if device.state != agent_pb2.DEVICE_STATE_HEALTHY:
        state = (words.device_state(device).upper(), "bold red")
        replica = f"!! {device.reason or 'no reason given'}" + (f", holds {replica}" if replica else "")
    return (
        str(device.index),
        device.gpu_class,
        state,
        replica,
        idle_for(row.idleness, now=now) if row.HasField("idleness") else "",
        _memory(page, device),
        f"{device.temperature_celsius:.0f} °C" if device.HasField("temperature_celsius") else "-",
        f"{device.power_watts:.0f} W" if device.HasField("power_watts") else "-",
    )


def _memory(page: Page, device: agent_pb2.Device) -> str:
    if not device.HasField("memory_total_bytes"):
        return "-"
    used = device.memory_used_bytes if device.HasField("memory_used_bytes") else None
    share = used / device.memory_total_bytes if used is not None and device.memory_total_bytes else None
    bar = progress(share, width=8, ascii_only=page.ascii_only) if share is not None else " " * 8
    return f"{bar} {size_of(used, device.memory_total_bytes)}"
