"""The nearest miss of a model that cannot be placed: the node that lacks least, by the planner's search."""

from dataclasses import dataclass

from llmgw_controller.core.catalog import Model
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.explain import NearMiss
from llmgw_controller.core.placement import Memo, explain
from llmgw_kit.ids import ReplicaId


@dataclass(frozen=True)
class Near:
    """A node that would fit if idle replicas left it, and how far the rest of the replica is."""

    miss: NearMiss
    fabric: str | None
    #: All of its devices.
    devices: int
    #: What each of `miss.evict` holds there.
    holds: tuple[int, ...]
    nodes_needed: int
    nodes_found: int

    def text(self) -> str:
        """For people, without a full stop."""
        holders = ", ".join(
            f"{name} holds {count}" for name, count in zip(self.miss.evict, self.holds, strict=True)
        )
        return f"{self.miss.node_id}, {self.miss.free} of {self.devices} free; idle {holders}"


def nearest(model: Model, rooms: Rooms, idle: frozenset[ReplicaId], memo: Memo) -> Near | None:
    """Of all profiles; None: no node would come free by anybody's leaving."""
    found = [
        (miss, told)
        for profile in model.profiles
        for told in [explain(model, profile, rooms, evictable=idle, memo=memo)]
        for miss in told.near_misses
    ]
    if not found:
        return None
    best, told = min(found, key=lambda one: (one[0].needed - one[0].free, len(one[0].evict), one[0].node_id))
    room = rooms[best.node_id]
    return Near(
        best,
        min(room.node.fabrics, default=None),
        len(room.devices),
        tuple(sum(device.replica_id == name for device in room.devices) for name in best.evict),
        told.nodes_needed,
        len(told.fitting),
    )
