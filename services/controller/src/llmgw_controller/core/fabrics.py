"""Fabrics: what a replica of several nodes could get. Free GPUs on the wrong fabric are no room for it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llmgw_controller.core.claims import Device, Room, Rooms, Use
from llmgw_kit.ids import ReplicaId


@dataclass(frozen=True)
class LargestFit:
    """Of one class: so many nodes with so many GPUs each. `nodes` above 1 are wholly free ones."""

    nodes: int
    gpus_per_node: int
    gpu_class: str

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class FabricLine:
    """`fabric` is "" for the nodes that are on none: there a replica stays on one node."""

    fabric: str
    nodes: int
    whole_free: int
    whole_free_if_idle_left: int
    gpu_classes: tuple[str, ...]
    #: None: not one GPU is free.
    largest_fit: LargestFit | None
    largest_fit_if_idle_left: LargestFit | None


def fabrics(rooms: Rooms, idle: frozenset[ReplicaId]) -> tuple[FabricLine, ...]:
    """One line a fabric, and one for nodes on none; nothing at all where no fabric is declared."""
    names = sorted({fabric for room in rooms.values() for fabric in room.node.fabrics})
    if not names:
        return ()
    members = [(name, [room for room in rooms.values() if name in room.node.fabrics]) for name in names]
    if alone := [room for room in rooms.values() if not room.node.fabrics]:
        members.append(("", alone))
    nobody: frozenset[ReplicaId] = frozenset()
    return tuple(
        FabricLine(
            fabric=name,
            nodes=len(found),
            whole_free=sum(_whole(room, nobody) for room in found),
            whole_free_if_idle_left=sum(_whole(room, idle) for room in found),
            gpu_classes=tuple(sorted({device.gpu_class for room in found for device in room.devices})),
            largest_fit=largest_fit(found, nobody, gang=bool(name)),
            largest_fit_if_idle_left=largest_fit(found, idle, gang=bool(name)),
        )
        for name, found in members
    )


def largest_fit(rooms: Iterable[Room], leaving: frozenset[ReplicaId], *, gang: bool) -> LargestFit | None:
    """The most GPUs that one replica could have, were `leaving` gone: whole nodes of one class and pool
    together, or what is free on one node. Of equal ones that of fewer nodes."""
    best: LargestFit | None = None
    for one in _candidates(list(rooms), leaving, gang=gang):
        if best is None or (one.gpus, -one.nodes) > (best.gpus, -best.nodes):
            best = one
    return best


def _candidates(rooms: list[Room], leaving: frozenset[ReplicaId], *, gang: bool) -> Iterator[LargestFit]:
    whole: dict[tuple[str, str | None], list[int]] = {}
    for room in rooms:
        if not room.takes_work:
            continue
        sizes: dict[str, int] = {}
        for device in room.devices:
            if _could_be_free(device, leaving):
                sizes[device.gpu_class] = sizes.get(device.gpu_class, 0) + 1
        for gpu_class, size in sorted(sizes.items()):
            yield LargestFit(1, size, gpu_class)
            if _whole(room, leaving):
                whole.setdefault((gpu_class, room.node.pool), []).append(size)
    if not gang:
        return
    for (gpu_class, _), found in sorted(whole.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        # Every node gives as many as the smallest among them has.
        for count, size in enumerate(sorted(found, reverse=True), start=1):
            yield LargestFit(count, size, gpu_class)


def _whole(room: Room, leaving: frozenset[ReplicaId]) -> bool:
    """Every device could take a shard, on a node that takes work."""
    return (
        room.takes_work
        and bool(room.devices)
        and all(_could_be_free(device, leaving) for device in room.devices)
    )


def _could_be_free(device: Device, leaving: frozenset[ReplicaId]) -> bool:
    """Free, or held only by what would leave. An engine that no row knows leaves for nobody."""
    return device.use is Use.FREE or (
        device.use is Use.CLAIMED and not device.stale and device.replica_id in leaving
    )
