"""Sizes: which claims of memory no device of the fleet can tell apart.

Every model has weights of a size of its own, and so asks for something of its own. But a device either can
give it or cannot: claims that lie between the same two sizes are answered alike, and searched for once.
"""

from bisect import bisect_left
from dataclasses import replace

from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.filters import Ask
from llmgw_controller.core.memory import UNKNOWN, MemoryClaim
from llmgw_controller.core.state import Snapshot

#: More than any device has.
_TOO_MUCH = MemoryClaim(2**62, None)


class Sizes:
    """Of the devices of one snapshot: what they have, and what they can give."""

    def __init__(self, rooms: Rooms) -> None:
        found: dict[str, set[int]] = {}
        for room in rooms.values():
            for device in room.devices:
                sizes = found.setdefault(device.gpu_class, set())
                sizes.update(
                    size for size in (device.memory_total_bytes, device.usable_bytes) if size is not None
                )
        self._sizes = {gpu_class: sorted(sizes) for gpu_class, sizes in found.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sizes) and self._sizes == other._sizes

    __hash__ = None  # type: ignore[assignment]

    def alike(self, ask: Ask) -> Ask:
        """One and the same for all asks that are answered alike."""
        claimed = ask.memory.size_bytes
        if claimed is None:
            return ask
        sizes = self._sizes.get(ask.gpu_class, [])
        at = bisect_left(sizes, claimed)
        if at == len(sizes):
            return replace(ask, memory=_TOO_MUCH)
        # What every device can give is asked of none.
        return replace(ask, memory=MemoryClaim(sizes[at], None) if at else UNKNOWN)


def sizes_of(snapshot: Snapshot, rooms: Rooms) -> Sizes:
    """Of its devices, looked at once; claims move none of them."""
    heard, nodes = snapshot.heard, snapshot.stored.nodes
    before: tuple[object, object, Sizes] | None = snapshot.found.get("sizes")
    if before is None or before[0] is not heard or before[1] is not nodes:
        before = snapshot.found["sizes"] = (heard, nodes, Sizes(rooms))
    return before[2]
