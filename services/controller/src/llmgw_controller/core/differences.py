"""Differences: where the rows of the store are not what the leader takes them for.

Nobody else writes them while a term holds, so there are none, or there is a bug or somebody at the database.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from llmgw_controller.core.rows import EvictionState, NodeRow, Stored
from llmgw_kit.ids import ModelId

#: A store keeps times to the microsecond; less than this is the same time.
SAME_S = 0.001


def differences(ours: Stored, theirs: Stored) -> tuple[str, ...]:
    """What differs, each by kind and key: "replicas m/1". Receipts that are no longer looked back on are in a
    copy only, and say nothing."""
    return tuple(_differing(ours, theirs))


def _differing(ours: Stored, theirs: Stored) -> Iterator[str]:
    for one in fields(Stored):
        mine, other = _keyed(ours, one.name), _keyed(theirs, one.name)
        for key in sorted({*mine, *other}):
            if not _alike(mine.get(key), other.get(key)):
                if one.name == "evictions" and key not in other and _is_closed(ours, key):
                    continue
                yield f"{one.name} {key}".strip()


def _is_closed(stored: Stored, eviction_id: str) -> bool:
    return stored.evictions[eviction_id].state is not EvictionState.DRAINING


def _keyed(stored: Stored, name: str) -> Mapping[str, Any]:
    """The rows of one kind by something that names them in a line."""
    rows = getattr(stored, name)
    match name:
        case "models":
            return {model: _parsed(model, text) for model, text in rows.items()}
        case "nodes":
            return {key: _without_order(row) for key, row in rows.items()}
        case "tombstones":
            return {row.shard_id: row for row in rows}
        case "quarantine":
            return {f"{row.node_id}:{row.port}": row for row in rows}
        case "loads" | "attempts":
            grouped: dict[str, list[Any]] = {}
            for row in rows:
                grouped.setdefault(row.model, []).append(row)
            # Those of one moment may come in either order.
            return {model: tuple(sorted(found, key=_order)) for model, found in grouped.items()}
        case "idle_floor":
            return {"": rows}
    return dict(rows)


def _order(row: Any) -> tuple[float, str]:
    return round(row.at, 2), f"{row.profile} {getattr(row, 'replica_id', '')}"


def _parsed(model: ModelId, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return (model, text)


def _without_order(row: NodeRow) -> NodeRow:
    return replace(row, devices=tuple(sorted(row.devices, key=lambda device: device.device_id)))


def _alike(one: Any, other: Any) -> bool:
    if one is other or one == other:
        return True
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return bool(abs(one - other) <= SAME_S)
        case tuple():
            return len(one) == len(other) and all(map(_alike, one, other))
        case _ if is_dataclass(one):
            return all(_alike(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    return False
