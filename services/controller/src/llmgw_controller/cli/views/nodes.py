"""`llmgwctl nodes` and `llmgwctl gpus`."""

from collections import Counter
from collections.abc import Sequence

from llmgw.v1 import agent_pb2
from llmgw.v1 import operator_pb2 as pb
from llmgw_controller.cli import words
from llmgw_controller.cli.bars import PARTS, USE_PART, device_cells, progress
from llmgw_controller.cli.page import Column, Page, Piece, Row, Span, table
from llmgw_controller.cli.text import count, duration, joined, moment, size, size_of
from llmgw_controller.cli.views.common import first_line, idle_for, marked

SHOWN = 14


def render_nodes(page: Page, answer: pb.ListNodesResponse, *, every: bool) -> None:
    rows = sorted(answer.nodes, key=lambda node: (_rank(node), node.node_id))
    first_line(page, answer.info, count(len(rows), "node") + (", trouble first" if rows else ""))
    if not rows:
        page.line("no agent has registered yet; on a node: llmgw-agent serve --controller HOST:PORT")
        return
    columns = [
        Column("   NODE", most=24),
        Column("FABRIC", most=10),
        Column("GPUS", most=14),
        Column("USE"),
        Column("STATE"),
        Column("BEAT", right=True),
        Column("HOLDS"),
    ]
    shown = rows if every else rows[:SHOWN]
    table(
        page,
        columns,
        [
            (
                marked(_mark(node), node.node_id),
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
    if hidden := rows[len(shown) :]:
        fine = ", all ready" if all(_rank(node) == _FINE for node in hidden) else ""
        page.line(f"… {len(hidden)} more{fine}.  llmgwctl nodes --all")


_FINE = 4


def _rank(node: pb.NodeRow) -> int:
    if node.state in (pb.NODE_STATE_UNREACHABLE, pb.NODE_STATE_LOST):
        return 0
    if any(d.use == pb.DEVICE_USE_UNHEALTHY for d in node.devices):
        return 1
    if node.schedulability != pb.SCHEDULABILITY_SCHEDULABLE:
        return 2
    return 3 if any(d.use == pb.DEVICE_USE_FOREIGN for d in node.devices) else _FINE


def _mark(node: pb.NodeRow) -> Piece:
    return (("!!", "bold red"), ("!!", "bold red"), (" *", ""), (" *", ""), ("", ""))[_rank(node)]


def _classes(node: pb.NodeRow) -> str:
    classes = Counter(d.device.gpu_class for d in node.devices)
    return ", ".join(f"{n} {name}" for name, n in sorted(classes.items())) or "none"


def _cells(page: Page, node: pb.NodeRow) -> list[Piece]:
    """One glyph a device; a node of very many is counted instead."""
    found: list[Piece] = [*device_cells(node.devices, ascii_only=page.ascii_only)]
    return found if len(found) <= SHOWN else [*found[: SHOWN - 1], ("…", "")]


def _holds(node: pb.NodeRow) -> str:
    """What runs there, which GPUs are not as they should be, why it is set aside."""
    models: dict[str, list[str]] = {}
    for replica_id in sorted(node.replica_ids):
        models.setdefault(replica_id.rpartition("/")[0], []).append(replica_id)
    named = [ids[0] if len(ids) == 1 else f"{len(ids)} {model}" for model, ids in models.items()]
    parts = []
    for word in ("missing", "unhealthy", "foreign"):
        if indexes := [str(d.device.index) for d in node.devices if _odd(d) == word]:
            parts.append(f"{' '.join(indexes)} {word}")
    if node.HasField("reason") and node.schedulability != pb.SCHEDULABILITY_SCHEDULABLE:
        parts.append(node.reason)
    free = [d for d in node.devices if d.use == pb.DEVICE_USE_FREE]
    whole = bool(free) and len(free) == len(node.devices)
    parts.insert(1, joined(named, most=2) if named else "nothing, a whole node" if whole else "nothing")
    return "; ".join(parts)


def _odd(row: pb.DeviceRow) -> str | None:
    """What is wrong with a device, in a word."""
    if row.use == pb.DEVICE_USE_FOREIGN:
        return "foreign"
    if row.use != pb.DEVICE_USE_UNHEALTHY:
        return None
    return "unhealthy" if row.device.state == agent_pb2.DEVICE_STATE_UNHEALTHY else "missing"


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
    states = Counter(_odd(row) or "healthy" for row in rows)
    kinds = Counter(
        f"{row.device.gpu_class} {size(row.device.memory_total_bytes)}"
        if row.device.HasField("memory_total_bytes")
        else row.device.gpu_class
        for row in rows
    )
    what = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    health = ", ".join(f"{states[word]} {word}" for word in sorted(states, key=lambda w: (w != "healthy", w)))
    page.line((node_id, "bold"), f" · {what} · {health}")
    columns = [
        Column("GPU", right=True),
        Column("STATE"),
        Column("REPLICA", most=24),
        Column("IDLE", right=True),
        Column("MEMORY"),
        Column("TEMP", right=True),
        Column("POWER", right=True),
    ]
    table(page, columns, [line for row in rows for line in _device(page, row, now)])
    uses = Counter(words.shown_use(row) for row in rows)
    order = [part.name for part in PARTS]
    order.insert(order.index("unhealthy"), "missing")
    total = " + ".join(f"{uses[name]} {name}" for name in order if uses[name])
    page.line((f"{len(rows)} = {total}", "dim"))


def _device(page: Page, row: pb.DeviceRow, now: float) -> list[Row]:
    device = row.device
    if row.use == pb.DEVICE_USE_UNHEALTHY:
        word = words.shown_use(row).upper()
        return [Span((str(device.index), (word, "bold red")), ("!! " + _fault(row, now), ""))]
    lines: list[Row] = [
        (
            str(device.index),
            USE_PART[row.use],
            row.replica_id if row.HasField("replica_id") else "",
            idle_for(row.idleness, now=now) if row.HasField("idleness") else "",
            _memory(page, device),
            f"{device.temperature_celsius:.0f} °C" if device.HasField("temperature_celsius") else "-",
            f"{device.power_watts:.0f} W" if device.HasField("power_watts") else "-",
        )
    ]
    lines += [Span(("", ""), (f" * {words.process(one)}, not started by us", "")) for one in device.foreign]
    lines += [Span(("", ""), (f" * {note}", "")) for note in device.notes]
    if device.HasField("fault") and device.fault.fault_class != agent_pb2.FAULT_CLASS_APP:
        at = moment(device.fault.at_unix_s, now=now)
        lines.append(Span(("", ""), (f" * had {words.fault(device.fault)} at {at}, and healed", "dim")))
    return lines


def _fault(row: pb.DeviceRow, now: float) -> str:
    device = row.device
    missing = "not in the inventory" if words.shown_use(row) == "missing" else "no reason told"
    told = words.fault(device.fault) if device.HasField("fault") else device.reason or missing
    parts = [told]
    if device.HasField("since_unix_s"):
        parts.append(f"since {moment(device.since_unix_s, now=now, seconds=True)}")
    if row.HasField("replica_id"):
        parts.append(f"{row.replica_id} is on it")
    if device.HasField("temperature_celsius"):
        parts.append(f"last seen at {device.temperature_celsius:.0f} °C")
    return "; ".join(parts)


def _memory(page: Page, device: agent_pb2.Device) -> str:
    if not device.HasField("memory_total_bytes"):
        return "-"
    used = device.memory_used_bytes if device.HasField("memory_used_bytes") else None
    share = used / device.memory_total_bytes if used is not None and device.memory_total_bytes else None
    bar = progress(share, width=12, ascii_only=page.ascii_only) if share is not None else " " * 12
    return f"{bar} {size_of(used, device.memory_total_bytes)}"
