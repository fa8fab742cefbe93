"""Choosing: of nodes with their scores, those that one replica takes together."""

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Any

from llmgw_controller.core.claims import Room, Rooms
from llmgw_controller.core.filters import Ask
from llmgw_kit.ids import NodeId

#: Fabric, and what all members have in common; empty for a replica of one node.
GroupKey = tuple[str, int]


#: Lower is better.
Mark = tuple[Any, ...]


def group_keys(ask: Ask, room: Room) -> tuple[GroupKey, ...]:
    """The sets of nodes in which this one may be a member: of one fabric; and where whole nodes are taken, of
    one size, for members must be alike."""
    if not ask.gang:
        return (("", 0),)
    size = len(room.devices) if ask.whole_nodes else ask.gpus
    return tuple((fabric, size) for fabric in room.node.fabrics)


def groups(ask: Ask, rooms: Rooms, nodes: Iterable[NodeId]) -> list[list[NodeId]]:
    """Those of `nodes` that may hold one replica together, in the order of their keys."""
    found: dict[GroupKey, list[NodeId]] = {}
    for node_id in nodes:
        for key in group_keys(ask, rooms[node_id]):
            found.setdefault(key, []).append(node_id)
    return [found[key] for key in sorted(found)]


def choose(
    sets: Iterable[list[NodeId]], count: int, mark: Callable[[NodeId], Mark]
) -> tuple[NodeId, ...] | None:
    """The best `count` of one set, by name, for the ranks follow it; None: no set has so many. Among sets the
    one whose worst node is best."""
    best: tuple[list[Mark], tuple[NodeId, ...]] | None = None
    for nodes in sets:
        if len(nodes) < count:
            continue
        picked = nsmallest(count, ((mark(node_id), node_id) for node_id in nodes))
        rank = [one for one, _ in reversed(picked)]
        if best is None or rank < best[0]:
            best = (rank, tuple(sorted(node_id for _, node_id in picked)))
    return best[1] if best else None
