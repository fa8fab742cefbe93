"""What each device is used for: the one answer that placement, the view and its sums share.

A device counts once, in this order: missing or unhealthy, claimed, foreign use, cordoned (also:
unclaimed on a node that takes no work), free. An unhealthy device is neither used nor free.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from llmgw_controller.core.heard import DeviceReport, DeviceState, NodeHeard, ShardState
from llmgw_controller.core.hearing import NodeState, node_state, takes_work, tombstones_of
from llmgw_controller.core.memory import Measured, measured_of, usable_bytes
from llmgw_controller.core.rows import LoadRecord, NodeRow, ReplicaRow
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId


class Use(Enum):
    UNHEALTHY = "unhealthy"
    CLAIMED = "claimed"
    FOREIGN = "foreign"
    CORDONED = "cordoned"
    FREE = "free"


@dataclass(frozen=True)
class Device:
    """One device and its one use. `report` is None until its agent was heard in this term."""

    node_id: NodeId
    device_id: DeviceId
    index: int
    gpu_class: str
    memory_total_bytes: int | None
    use: Use
    replica_id: ReplicaId | None
    #: Claimed by an engine the rows do not know (given up with its node, or never ours to start):
    #: it computes there all the same, so the device is taken until its exit is seen.
    stale: bool
    report: DeviceReport | None
    #: May be claimed there by whoever comes when what is ours has left; None: its size is unknown.
    usable_bytes: int | None = None
    #: Free, and kept for a replica that waits and is placed first. Only within one pass.
    promised: bool = False


@dataclass(frozen=True)
class Room:
    """A node as placement sees it."""

    node: NodeRow
    state: NodeState
    takes_work: bool
    tombstones: int
    #: None: not heard in this term.
    engines: frozenset[str] | None
    #: (model, version) held complete.
    weights: frozenset[tuple[str, str]]
    devices: tuple[Device, ...]
    #: Leased, or in quarantine still, or held by a stale engine.
    taken_ports: frozenset[int]
    #: Live replicas of each model with a shard here.
    models: tuple[tuple[ModelId, int], ...]
    #: What earlier starts were seen to hold; one and the same for all rooms.
    measured: Measured = field(default_factory=dict)

    @cached_property
    def holders(self) -> frozenset[ReplicaId]:
        """Replicas with devices here."""
        return frozenset(device.replica_id for device in self.devices if device.replica_id is not None)


Rooms = dict[NodeId, Room]


@dataclass(frozen=True)
class _Claims:
    """On one node."""

    devices: dict[DeviceId, tuple[ReplicaId, bool]]
    ports: frozenset[int]
    models: Counter[ModelId]


@dataclass(frozen=True)
class _Basis:
    """All that a room follows from."""

    node: NodeRow
    heard: NodeHeard | None
    #: With a shard there.
    rows: tuple[ReplicaRow, ...]
    #: Ports in quarantine.
    resting: frozenset[int]
    tombstones: int
    state: NodeState
    takes_work: bool
    measured: Measured
    foreign_bytes: int

    def same(self, other: "_Basis") -> bool:
        """Nothing has moved; what is heard and stored is never changed in place."""
        return (
            self.node is other.node
            and _same_words(self.heard, other.heard)
            and self.measured is other.measured
            and self.rows == other.rows
            and (self.resting, self.tombstones, self.state, self.takes_work, self.foreign_bytes)
            == (other.resting, other.tombstones, other.state, other.takes_work, other.foreign_bytes)
        )


def _same_words(one: NodeHeard | None, other: NodeHeard | None) -> bool:
    """All that a room is made of. A beat says nothing of it, and most words are beats."""
    if one is None or other is None:
        return one is other
    return (
        one.devices is other.devices
        and one.shards is other.shards
        and one.weights is other.weights
        and one.engines is other.engines
    )


def rooms(snapshot: Snapshot, now: float) -> Rooms:
    """Every known node, by id. A pass asks for them many times and moves a node or two in between, and the
    next finds most as they were: the rooms of all others are the very same ones, and where none has moved so
    is the whole."""
    kept: dict[NodeId, tuple[_Basis, Room]] = snapshot.found.get("rooms", {})
    if not kept or len(kept) > 2 * len(snapshot.stored.nodes):
        # The first, or it keeps rooms of nodes that are gone.
        kept = snapshot.found["rooms"] = {}
    measured = _measured(snapshot)
    resting: dict[NodeId, frozenset[int]] = {}
    for quarantine in snapshot.stored.quarantine:
        if quarantine.until > now:
            ports = resting.get(quarantine.node_id, frozenset())
            resting[quarantine.node_id] = ports | {quarantine.port}
    found: Rooms = {}
    moved = False
    for node_id in sorted(snapshot.stored.nodes):
        basis = _basis(snapshot, node_id, resting.get(node_id, frozenset()), measured, now)
        before = kept.get(node_id)
        if before is not None and before[0].same(basis):
            found[node_id] = before[1]
            continue
        moved = True
        found[node_id] = _room(basis)
        kept[node_id] = (basis, found[node_id])
    whole: Rooms | None = snapshot.found.get("all rooms")
    if moved or whole is None or not _same(whole, found):
        whole = snapshot.found["all rooms"] = found
    return whole


def _same(one: Rooms, other: Rooms) -> bool:
    return one.keys() == other.keys() and all(one[key] is room for key, room in other.items())


def _measured(snapshot: Snapshot) -> Measured:
    before: tuple[tuple[LoadRecord, ...], Measured] | None = snapshot.found.get("measured")
    if before is None or before[0] is not snapshot.stored.loads:
        before = snapshot.found["measured"] = (snapshot.stored.loads, measured_of(snapshot.stored.loads))
    return before[1]


def _basis(
    snapshot: Snapshot, node_id: NodeId, resting: frozenset[int], measured: Measured, now: float
) -> _Basis:
    node = snapshot.stored.nodes[node_id]
    return _Basis(
        node=node,
        heard=snapshot.heard.get(node_id),
        rows=snapshot.stored.by_node.get(node_id, ()),
        resting=resting,
        tombstones=tombstones_of(snapshot, node_id),
        state=node_state(snapshot, node, now),
        takes_work=takes_work(snapshot, node, now),
        measured=measured,
        foreign_bytes=snapshot.intervals.foreign_bytes,
    )


def with_claim(
    rooms: Rooms,
    model: ModelId,
    replica_id: ReplicaId,
    node_id: NodeId,
    device_ids: tuple[DeviceId, ...],
    ports: tuple[int, ...],
) -> Rooms:
    """The rooms after one shard more was placed."""
    room = rooms[node_id]
    devices = tuple(
        replace(device, use=Use.CLAIMED, replica_id=replica_id) if device.device_id in device_ids else device
        for device in room.devices
    )
    models = Counter(dict(room.models))
    models[model] += 1
    fuller = replace(
        room,
        devices=devices,
        taken_ports=room.taken_ports | set(ports),
        models=tuple(sorted(models.items())),
    )
    return {**rooms, node_id: fuller}


def _claims(basis: _Basis) -> _Claims:
    devices: dict[DeviceId, tuple[ReplicaId, bool]] = {}
    ports = set(basis.resting)
    models: Counter[ModelId] = Counter()
    known: set[str] = set()
    for row in basis.rows:
        for shard in row.shards:
            if shard.node_id != basis.node.node_id:
                continue
            known.add(shard.shard_id)
            if shard.released:
                continue
            for device_id in shard.device_ids:
                devices[device_id] = (row.replica_id, False)
            ports.update(port for _, port in shard.ports)
            models[row.model] += 1
    for report in basis.heard.shards.values() if basis.heard is not None else ():
        if report.state is ShardState.EXITED or report.shard_id in known:
            continue
        for device_id in report.device_ids:
            devices.setdefault(device_id, (report.replica_id, True))
        ports.update(port for _, port in report.ports)
    return _Claims(devices, frozenset(ports), models)


def with_promise(rooms: Rooms, node_id: NodeId, device_ids: frozenset[DeviceId]) -> Rooms:
    """The rooms with these devices kept for a replica that waits there."""
    room = rooms[node_id]
    devices = tuple(
        replace(device, promised=True) if device.device_id in device_ids else device
        for device in room.devices
    )
    return {**rooms, node_id: replace(room, devices=devices)}


def _room(basis: _Basis) -> Room:
    heard, claims = basis.heard, _claims(basis)
    return Room(
        node=basis.node,
        state=basis.state,
        takes_work=basis.takes_work,
        tombstones=basis.tombstones,
        engines=frozenset(heard.engines) if heard else None,
        weights=frozenset((held.model, held.version) for held in heard.weights if held.complete)
        if heard
        else frozenset(),
        devices=_devices(basis, claims),
        taken_ports=claims.ports,
        models=tuple(sorted(claims.models.items())),
        measured=basis.measured,
    )


def _devices(basis: _Basis, claims: _Claims) -> tuple[Device, ...]:
    node, heard = basis.node, basis.heard
    reports = {report.device_id: report for report in heard.devices} if heard else {}
    inventory = {row.device_id: (row.index, row.gpu_class, row.memory_total_bytes) for row in node.devices}
    inventory |= {
        report.device_id: (report.index, report.gpu_class, report.memory_total_bytes)
        for report in reports.values()
    }
    own = _own_use(heard)
    found: list[Device] = []
    for device_id, (index, gpu_class, memory) in inventory.items():
        report = reports.get(device_id)
        claim = claims.devices.get(device_id)
        if heard is not None and (report is None or report.state is not DeviceState.HEALTHY):
            use = Use.UNHEALTHY  # In the rows but no longer in the inventory: missing.
        elif claim is not None:
            use = Use.CLAIMED
        elif report is not None and (report.foreign_used_bytes or 0) >= basis.foreign_bytes:
            use = Use.FOREIGN
        else:
            use = Use.FREE if basis.takes_work else Use.CORDONED
        found.append(
            Device(
                node_id=node.node_id,
                device_id=device_id,
                index=index,
                gpu_class=gpu_class,
                memory_total_bytes=memory,
                use=use,
                replica_id=claim[0] if claim else None,
                stale=claim[1] if claim else False,
                report=report,
                usable_bytes=usable_bytes(
                    memory,
                    report.memory_used_bytes if report else None,
                    report.foreign_used_bytes if report else None,
                    own.get(device_id, 0),
                ),
            )
        )
    return tuple(sorted(found, key=lambda device: (device.index, device.device_id)))


def _own_use(heard: NodeHeard | None) -> dict[DeviceId, int]:
    """What engines of ours were seen to hold, those that have just exited included."""
    own: dict[DeviceId, int] = {}
    for report in heard.shards.values() if heard else ():
        for device_id, used in report.memory_used_bytes:
            own[device_id] = own.get(device_id, 0) + used
    return own
