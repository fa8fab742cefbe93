"""Earmarks: the room that an eviction makes is kept for whoever waits for it, until it is theirs.

Nothing of this is stored: from the open receipts and the rows it follows where the beneficiary will go
once its victims have left, and nobody else is placed there meanwhile, whatever their rank.
"""

from dataclasses import replace

from llmgw_controller.core.apply import apply
from llmgw_controller.core.claims import Rooms, Use, rooms, with_claim, with_promise
from llmgw_controller.core.failing import startable
from llmgw_controller.core.hearing import is_learning
from llmgw_controller.core.placement import Placement, memo_of, place
from llmgw_controller.core.plan import Release
from llmgw_controller.core.rows import EvictionRow, Phase, PortQuarantine, ReplicaRow, Stored, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId

#: Open receipts, each with its victim; None where that engine is gone.
Open = list[tuple[EvictionRow, ReplicaRow | None]]

#: Waiting replicas with those that leave for them, in the order in which it was decided.
Owed = dict[ReplicaId, frozenset[ReplicaId]]

_WAITING = frozenset({Phase.WANTED, Phase.UNPLACEABLE})


def open_evictions(stored: Stored) -> dict[ReplicaId, Open]:
    """By beneficiary."""
    found: dict[ReplicaId, Open] = {}
    for endpoint_id, receipt in stored.leaving_for.items():
        row = stored.replicas.get(receipt.victim_replica_id)
        mine = row if row is not None and row.endpoint_id == endpoint_id else None
        assert receipt.beneficiary_replica_id is not None, f"{receipt.eviction_id}: for nobody"
        found.setdefault(receipt.beneficiary_replica_id, []).append((receipt, mine))
    return found


def owed(stored: Stored) -> Owed:
    """Whose room is being made now."""
    opened = sorted(open_evictions(stored).items(), key=lambda one: (one[1][0][0].decided_at, one[0]))
    return {
        name: frozenset(row.replica_id for _, row in victims if row is not None)
        for name, victims in opened
        if (waits := stored.replicas.get(name)) is not None
        if waits.wish is Wish.SERVE and waits.phase in _WAITING
    }


def places_after(snapshot: Snapshot, owing: Owed, now: float) -> dict[ReplicaId, Placement]:
    """Where each of them goes when their victims have left; those that still find no place are left out.

    Each first goes where its own victims were, for that room was made for it alone: of several, one that
    needs less must not take the place that fits another, or be sent where it has to wait for longer. Only
    those that find no place there any more, as after trouble with a node, share what the others leave."""
    found: dict[ReplicaId, Placement] = {}
    everybody = frozenset(victim for victims in owing.values() for victim in victims)
    for name, victims in owing.items():
        _settle(snapshot, name, victims, everybody - victims, found, now)
    for name in owing:
        if name not in found:
            _settle(snapshot, name, everybody, frozenset(), found, now)
    return found


def _settle(
    snapshot: Snapshot,
    name: ReplicaId,
    victims: frozenset[ReplicaId],
    spared: frozenset[ReplicaId],
    found: dict[ReplicaId, Placement],
    now: float,
) -> None:
    """Add its place, if it has one, with these victims gone, those of `found` there, and kept for others what
    `spared` hold or have just left."""
    row = snapshot.stored.replicas.get(name)
    model = snapshot.catalog.models.get(row.model) if row is not None else None
    if row is None or model is None:
        return
    profiles = startable(snapshot.stored, model, snapshot.intervals)
    if not profiles:
        return
    left = rooms(replace(snapshot, stored=_without(snapshot, victims, now)), now)
    for one in sorted(spared):
        if (leaver := snapshot.stored.replicas.get(one)) is not None:
            for shard in leaver.shards:
                left = with_claim(left, leaver.model, one, shard.node_id, shard.device_ids, ())
    for other, there in found.items():
        left = _claimed(left, snapshot.stored.replicas[other].model, other, there)
    epoch = next_epoch(snapshot.stored, row)
    memo = memo_of(snapshot, left)
    answer = place(model, left, replica_id=name, group_epoch=epoch, profiles=profiles, memo=memo)
    if isinstance(answer, Placement):
        found[name] = answer


def _without(snapshot: Snapshot, victims: frozenset[ReplicaId], now: float) -> Stored:
    stored = snapshot.stored
    for name in sorted(victims):
        row = stored.replicas.get(name)
        if row is not None and row.holds_devices:
            stored = apply(stored, (_release(row, now + snapshot.intervals.port_quarantine_s),))
    return stored


def keep_room(snapshot: Snapshot, found: Rooms, now: float) -> tuple[Rooms, dict[ReplicaId, Placement]]:
    """The rooms without what is owed, and the places of those whose room is free now."""
    owing = owed(snapshot.stored)
    if not owing:
        return found, {}
    held = _held(snapshot.stored, frozenset(name for victims in owing.values() for name in victims))
    free_now: dict[ReplicaId, Placement] = {}
    answers = places_after(snapshot, owing, now)
    for name, answer in answers.items():
        row = snapshot.stored.replicas[name]
        found = _claimed(found, row.model, name, answer)
        if not any((part.node_id, device) in held for part in answer.shards for device in part.device_ids):
            free_now[name] = answer
    if is_learning(snapshot, now):
        for name in owing.keys() - answers.keys():
            found = _kept_around(snapshot.stored, found, owing[name])
    return found, free_now


def _kept_around(stored: Stored, found: Rooms, victims: frozenset[ReplicaId]) -> Rooms:
    """Where it goes is not known before the other nodes are heard: until then nobody takes what is free
    beside its victims, or, for it may be a gang, on the nodes that share a fabric with theirs."""
    there = {shard.node_id for name in victims for shard in stored.replicas[name].shards} & found.keys()
    fabrics = {fabric for node_id in there for fabric in found[node_id].node.fabrics}
    for node_id, room in found.items():
        if node_id in there or fabrics.intersection(room.node.fabrics):
            free = frozenset(device.device_id for device in room.devices if device.use is Use.FREE)
            found = with_promise(found, node_id, free)
    return found


def waits_for(stored: Stored, name: ReplicaId) -> str | None:
    """What a replica is told of the room that is being made for it; None: none is."""
    victims = owed(stored).get(name)
    return f"room is made for it: {' and '.join(sorted(victims))} to leave" if victims else None


def next_epoch(stored: Stored, row: ReplicaRow) -> int:
    """Of its next start: used by no replica of its model before."""
    return max(row.group_epoch, stored.epochs.get(row.model, 0)) + 1


def _claimed(found: Rooms, model: ModelId, name: ReplicaId, answer: Placement) -> Rooms:
    for part in answer.shards:
        ports = tuple(port for _, port in part.ports)
        found = with_claim(found, model, name, part.node_id, part.device_ids, ports)
    return found


def _held(stored: Stored, names: frozenset[ReplicaId]) -> frozenset[tuple[NodeId, DeviceId]]:
    return frozenset(
        (shard.node_id, device)
        for name in names
        if (row := stored.replicas.get(name)) is not None
        for shard in row.shards
        if not shard.released
        for device in shard.device_ids
    )


def _release(row: ReplicaRow, until: float) -> Release:
    """As its exit will free it: its ports rest, and are no good for the next one either."""
    held = [shard for shard in row.shards if not shard.released]
    resting = tuple(PortQuarantine(shard.node_id, port, until) for shard in held for _, port in shard.ports)
    return Release(row.replica_id, tuple(shard.shard_id for shard in held), resting)
