"""N-1: what would find no place if one node ended now; the planner's own search on the fleet without it.

Nothing is moved and nothing evicted here: a replica counts as homeless when the room that is free today
does not take it. Of a large fleet this takes long, so it is looked at now and then, not at every view.
"""

from dataclasses import dataclass, replace

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.claims import Room, Rooms, Use, rooms, with_claim
from llmgw_controller.core.filters import Ask, ask_of
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.placement import Memo, Refusal, explain, place
from llmgw_controller.core.placing import rank
from llmgw_controller.core.rows import Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted
from llmgw_kit.ids import ModelId, NodeId, ReplicaId

_WAITING = frozenset({Phase.WANTED, Phase.UNPLACEABLE})

#: Nodes that a replica is tried on first: most fleets have that much room.
FEW = 16

#: Of replicas named in a line; the rest is counted.
NAMED = 3


@dataclass(frozen=True)
class NodeLossRisk:
    """These would find no place if the node ended now."""

    node_id: NodeId
    homeless: tuple[ReplicaId, ...]
    text: str


def risks(snapshot: Snapshot, now: float) -> tuple[NodeLossRisk, ...]:
    """One for each node in reach that is not spare, by id."""
    found = rooms(snapshot, now)
    fits = _Fits(found)
    told: list[NodeLossRisk] = []
    for node_id, room in found.items():
        if room.state is not NodeState.READY:
            continue  # It is trouble already, with a line of its own.
        displaced = _displaced(snapshot, node_id)
        homeless = _homeless(snapshot, found, fits, node_id, displaced) if displaced else ()
        if homeless:
            names = ", ".join(homeless[:NAMED])
            more = f" and {len(homeless) - NAMED} more" if len(homeless) > NAMED else ""
            gpus = sum(len(shard.device_ids) for row, _ in displaced if row.replica_id in homeless
                       for shard in row.shards)  # fmt: skip
            text = f"without {node_id} no place for {names}{more} ({counted(gpus, 'GPU')})"
            told.append(NodeLossRisk(node_id, homeless, text))
    return tuple(told)


Wanted = tuple[ReplicaRow, Model]


class _Fits:
    """Nodes that take a shard of one of a model's profiles as the fleet is. Models that ask for the same of a
    node share the answer."""

    def __init__(self, found: Rooms) -> None:
        self._rooms = found
        self.memo = Memo()
        self._measured = next(iter(found.values())).measured if found else {}
        self._by_ask: dict[Ask, frozenset[NodeId]] = {}
        self._fitting: dict[ModelId, frozenset[NodeId]] = {}
        self._few: dict[ModelId, frozenset[NodeId]] = {}

    def of(self, model: Model) -> frozenset[NodeId]:
        known = self._fitting.get(model.name)
        if known is None:
            known = frozenset[NodeId]().union(*(self._of(model, profile) for profile in model.profiles))
            self._fitting[model.name] = known
        return known

    def _of(self, model: Model, profile: Profile) -> frozenset[NodeId]:
        ask = ask_of(model, profile, self._measured)
        known = self._by_ask.get(ask)
        if known is None:
            known = frozenset(explain(model, profile, self._rooms, memo=self.memo).fitting)
            self._by_ask[ask] = known
        return known

    def few(self, model: Model) -> frozenset[NodeId]:
        """Enough of them to find a place in a fleet with room: of the fabric with the most, for a gang."""
        known = self._few.get(model.name)
        if known is None:
            every = self.of(model)
            groups: dict[str, list[NodeId]] = {"": sorted(every)}
            if any(profile.nodes > 1 for profile in model.profiles):
                groups = {}
                for node_id in sorted(every):
                    for fabric in self._rooms[node_id].node.fabrics:
                        groups.setdefault(fabric, []).append(node_id)
            best = max(groups.values(), key=len, default=[])
            known = frozenset(best[:FEW])
            self._few[model.name] = known
        return known


def _displaced(snapshot: Snapshot, node_id: NodeId) -> list[Wanted]:
    found: list[Wanted] = []
    for row in snapshot.stored.by_node.get(node_id, ()):
        model = snapshot.catalog.models.get(row.model)
        there = any(shard.node_id == node_id and not shard.released for shard in row.shards)
        if there and row.wish is Wish.SERVE and model is not None:
            found.append((row, model))
    return found


def _homeless(
    snapshot: Snapshot, found: Rooms, fits: _Fits, node_id: NodeId, displaced: list[Wanted]
) -> tuple[ReplicaId, ...]:
    gangs = any(len(row.shards) > 1 for row, _ in displaced)
    # Each placement spoils at most one node for the next: with so many fitting ones nobody is left out.
    if (
        not gangs
        and all(profile.nodes == 1 for _, model in displaced for profile in model.profiles)
        and all(len(fits.of(model) - {node_id}) >= len(displaced) for _, model in displaced)
    ):
        return ()
    wanted = list(displaced)
    if gangs:
        # The other nodes of a gang come free with it, also for whoever waits and ranks before.
        wanted += _waiting(snapshot)
    peers = frozenset(shard.node_id for row, _ in displaced for shard in row.shards) - {node_id}
    gone = frozenset(row.replica_id for row, _ in displaced)
    # Who finds a place among a few nodes finds one among all of them; who does not is looked at again.
    few = frozenset(name for _, model in wanted for name in fits.few(model))
    homeless = _unplaced(found, fits, (few | peers) - {node_id}, peers, gone, wanted)
    if not homeless:
        return ()
    every = frozenset(name for _, model in wanted for name in fits.of(model))
    return _unplaced(found, fits, (every | peers) - {node_id}, peers, gone, wanted)


def _unplaced(
    found: Rooms,
    fits: _Fits,
    candidates: frozenset[NodeId],
    peers: frozenset[NodeId],
    gone: frozenset[ReplicaId],
    wanted: list[Wanted],
) -> tuple[ReplicaId, ...]:
    """Of those who are gone, in the order of placing on these nodes."""
    left = {
        name: _without(found[name], gone) if name in peers else found[name]
        for name in sorted(candidates)
        if name in found
    }
    homeless: list[ReplicaId] = []
    for row, model in sorted(wanted, key=_order):
        answer = place(
            model, left, replica_id=row.replica_id, group_epoch=row.group_epoch + 1, memo=fits.memo
        )
        if isinstance(answer, Refusal):
            if row.replica_id in gone:
                homeless.append(row.replica_id)
            continue
        for shard in answer.shards:
            ports = tuple(port for _, port in shard.ports)
            left = with_claim(left, row.model, row.replica_id, shard.node_id, shard.device_ids, ports)
    return tuple(sorted(homeless))


def _waiting(snapshot: Snapshot) -> list[Wanted]:
    return [
        (row, model)
        for row in snapshot.stored.sorted_replicas
        if row.wish is Wish.SERVE and row.phase in _WAITING
        if (model := snapshot.catalog.models.get(row.model)) is not None
    ]


def _order(wanted: Wanted) -> tuple[int, int, int, float, str]:
    row, model = wanted
    return *rank(model), row.created_at, row.replica_id


def _without(room: Room, gone: frozenset[ReplicaId]) -> Room:
    """The room when what these replicas hold there is released."""
    use = Use.FREE if room.takes_work else Use.CORDONED
    return replace(
        room,
        devices=tuple(
            replace(device, use=use, replica_id=None)
            if device.use is Use.CLAIMED and device.replica_id in gone and not device.stale
            else device
            for device in room.devices
        ),
    )
