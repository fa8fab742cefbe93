"""What the admin listener shows, as plain data; credentials are never part of it."""

from typing import Any

import msgspec

from llmgw_router.operations import Operations


def table_view(operations: Operations) -> dict[str, Any]:
    """The table in force with what runs where, and what an operator has put aside."""
    board, pool = operations.router.board, operations.router.pool
    routes, marks = board.routes, board.marks
    running = {row.endpoint_id: seen for row, seen in pool.activity()}
    endpoints = []
    for row in routes.endpoints.values():
        seen = running.get(row.endpoint_id)
        shown = msgspec.to_builtins(row)
        shown.pop("slot")
        shown["credential"] = "set" if row.credential else None
        shown["drained_here"] = marks.covers(row)
        shown["in_flight"] = seen.in_flight if seen else None
        shown["picks"] = seen.picks if seen else None
        shown["failed"] = seen.failed if seen else None
        shown["broken"] = seen.broken if seen else None
        endpoints.append(shown)
    return {
        "source": board.source.value if board.source else None,
        "term": routes.term,
        "version": routes.version,
        "heard_age_s": board.heard_age_s,
        "endpoints": endpoints,
        "models": [msgspec.to_builtins(entry.row) for entry in routes.models.values()],
        "held": pool.held,
        "drained_here": {"endpoints": sorted(marks.endpoints), "replicas": sorted(marks.replicas)},
    }


async def requests_view(operations: Operations) -> dict[str, Any]:
    """What runs now, the oldest first."""
    now = await operations.running()
    rows = [{"worker": worker, **msgspec.to_builtins(row)} for worker, row in now.rows]
    rows.sort(key=lambda row: -row["age_s"])
    return {"requests": rows, "left_out": now.left_out, "silent_workers": now.silent}
