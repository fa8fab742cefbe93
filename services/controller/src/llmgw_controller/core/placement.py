"""Placement: choose nodes, devices and ports for all shards of one replica, or say why not.

Pure: the same rooms give the same answer, so a placement can be replayed from a recorded snapshot.
A replica lands as a whole inside one fabric or not at all; one node is the case of one shard, which
needs no fabric. First filters, each with a word, then a score; the explanation is made of the same
filters, and the ceiling (would it fit if all that is evictable were gone) is the same search again.
"""

from dataclasses import dataclass, replace
from itertools import combinations

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.choosing import choose, groups
from llmgw_controller.core.claims import Room, Rooms
from llmgw_controller.core.explain import Explanation, Filtered, Fit, NearMiss, Reason, Spot
from llmgw_controller.core.filters import Ask, ask_of, comes_free, first_reason, is_free, never, suits
from llmgw_controller.core.memory import Measured, MemoryClaim
from llmgw_controller.core.port_bands import lease, ports_needed
from llmgw_controller.core.rows import ShardRow
from llmgw_controller.core.score import Fullness, Score, fullness, score
from llmgw_controller.core.sizes import Sizes, sizes_of
from llmgw_controller.core.state import Snapshot
from llmgw_controller.core.words import counted, sized
from llmgw_kit.ids import DeviceId, ModelId, NodeId, ReplicaId, ShardId

#: Searching the smallest set of leaving replicas is exponential; a node holds few.
MAX_LEAVING = 8

#: Who leaves a node, and whether it then has room for a shard.
Sets = dict[tuple[NodeId, frozenset[ReplicaId]], tuple[Room, bool]]

#: So many of one ask are kept; then all are forgotten.
SETS_MOST = 20_000

#: Of so many asks is kept what was found; one more, and all are forgotten.
ASKS_MOST = 128


@dataclass(frozen=True)
class Placement:
    profile: Profile
    shards: tuple[ShardRow, ...]
    #: Of each device.
    memory: MemoryClaim


@dataclass(frozen=True)
class Refusal:
    """Of every profile tried, in order of preference; at least one."""

    explanations: tuple[Explanation, ...]

    @property
    def fit(self) -> Fit:
        """The best that any profile may hope for."""
        order = list(Fit)
        return min((one.fit for one in self.explanations), key=order.index)

    def reason(self) -> str:
        first, *others = self.explanations
        if not others:
            return first.reason()
        return "; ".join(f"{one.profile}: {one.reason()}" for one in (first, *others))


def place(
    model: Model,
    rooms: Rooms,
    *,
    replica_id: ReplicaId,
    group_epoch: int,
    profiles: tuple[Profile, ...] | None = None,
    resting: frozenset[NodeId] = frozenset(),
    evictable: frozenset[ReplicaId] = frozenset(),
    memo: "Memo | None" = None,
) -> Placement | Refusal:
    """The first of the model's profiles, or of those given, that fits. Nodes that rest are taken when no
    others are free. `evictable` only explains; nothing is evicted here. `memo` makes many placements in a row
    quick."""
    refused: list[Explanation] = []
    for profile in model.profiles if profiles is None else profiles:
        explanation = explain(
            model, profile, rooms, resting=resting, evictable=evictable, memo=memo, shared=True
        )
        if explanation.fit is Fit.NOW:
            nodes = tuple(spot.node_id for spot in explanation.spots)
            return placed(model, profile, rooms, nodes, replica_id=replica_id, group_epoch=group_epoch)
        refused.append(explanation)
    return Refusal(tuple(refused))


def placed(
    model: Model,
    profile: Profile,
    rooms: Rooms,
    nodes: tuple[NodeId, ...],
    *,
    replica_id: ReplicaId,
    group_epoch: int,
) -> Placement:
    """The shards on these nodes, by rank: which devices, which ports."""
    ask = ask_of(model, profile, _measured(rooms))
    shards = tuple(
        ShardRow(
            shard_id=ShardId(f"{replica_id}.{group_epoch}.{rank}"),
            node_id=node_id,
            rank=rank,
            device_ids=_spot(rooms[node_id], ask).device_ids,
            ports=_ports(rooms[node_id], ask),
        )
        for rank, node_id in enumerate(nodes)
    )
    return Placement(profile, shards, ask.memory)


@dataclass(frozen=True, slots=True)
class Look:
    """What one ask finds of one node."""

    reason: Reason | None
    full: Fullness
    #: With HELD_BY_IDLE.
    near: NearMiss | None


#: By node, and by who of those that hold something there may leave if anybody may; with what it was found of.
Looks = dict[NodeId | tuple[NodeId, frozenset[ReplicaId]], tuple[Room, Look]]


class Memo:
    """What was found of each node, for as long as the node is the same: one placement changes one of them,
    and a fleet's start asks of hundreds of nodes a thousand times. Whoever may leave elsewhere is nothing to
    a node, so all who ask share one memo, whatever their `evictable`. Profiles that ask for the same of a
    node share what was found, whatever model they are of; and those that wait for the same wait for one
    answer. Devices are as large in all rooms that are asked about, and every model is what it was."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        """`sizes`: of the devices; None: of the first rooms that are asked about."""
        self._asks: dict[tuple[ModelId, str], tuple[Ask, Ask]] = {}
        self._sizes = sizes
        self._found: dict[Ask, Looks] = {}
        self._refused: dict[tuple[Ask, int, frozenset[ReplicaId]], tuple[Rooms, Explanation]] = {}
        self._sets: dict[Ask, Sets] = {}

    def ask(self, model: Model, profile: Profile, rooms: Rooms) -> tuple[Ask, Ask]:
        """What a shard of the profile asks of a node; and the ask that it is answered alike with."""
        key = (model.name, profile.name)
        if key not in self._asks:
            own = ask_of(model, profile, _measured(rooms))
            self._asks[key] = (own, self.alike(own, rooms))
        return self._asks[key]

    def alike(self, ask: Ask, rooms: Rooms) -> Ask:
        """One and the same for all asks that are answered alike."""
        if self._sizes is None:
            self._sizes = Sizes(rooms)
        return self._sizes.alike(ask)

    def sets(self, ask: Ask) -> Sets:
        """Whether a node takes a shard once these have left it: a search for victims asks it of set after
        set."""
        found = self._sets.setdefault(ask, {})
        if len(found) >= SETS_MOST:
            found = self._sets[ask] = {}
        return found

    def node(self, ask: Ask, room: Room, evictable: frozenset[ReplicaId]) -> Look:
        """What one ask finds of one node."""
        return _look(self.of(ask), room, ask, evictable)

    def of(self, ask: Ask) -> Looks:
        """What was found for this ask."""
        found = self._found.get(ask)
        if found is None or len(found) >= SETS_MOST:
            if len(self._found) >= ASKS_MOST:
                self._found = {}
            found = self._found[ask] = {}
        return found

    def look(
        self, model: Model, profile: Profile, room: Room, evictable: frozenset[ReplicaId]
    ) -> tuple[Reason | None, Score]:
        """One node for one shard: what keeps it off, and how good it would be."""
        known = self._asks.get((model.name, profile.name))
        ask = ask_of(model, profile, room.measured) if known is None else known[1]
        found = _look(self.of(ask), room, ask, evictable)
        return found.reason, score(model, room, found.full, rests=False)

    def refused(
        self, ask: Ask, nodes: int, rooms: Rooms, evictable: frozenset[ReplicaId], *, shared: bool
    ) -> Explanation | None:
        """That it fits nowhere now, if just that was found of these very rooms. Who would have to leave
        depends on the model, so a fit after an eviction is told again only if that may be another's."""
        known = self._refused.get((ask, nodes, evictable))
        if known is None or known[0] is not rooms:
            return None
        return known[1] if shared or known[1].fit is Fit.NEVER else None

    def note(self, ask: Ask, explanation: Explanation, rooms: Rooms, evictable: frozenset[ReplicaId]) -> None:
        """Keep what can be told again."""
        if explanation.fit is not Fit.NOW:
            if len(self._refused) >= ASKS_MOST:
                self._refused = {}
            self._refused[ask, explanation.nodes_needed, evictable] = (rooms, explanation)


def memo_of(snapshot: Snapshot, rooms: Rooms) -> Memo:
    """One for all that ask of the snapshot as it changes, and for those of the next pass: what moved
    meanwhile is looked at again."""
    basis = (snapshot.catalog, _measured(rooms), sizes_of(snapshot, rooms))
    before: tuple[tuple[object, object, object], Memo] | None = snapshot.found.get("memo")
    if (
        before is None
        or before[0][0] is not basis[0]
        or before[0][1] is not basis[1]
        or before[0][2] != basis[2]
    ):
        before = snapshot.found["memo"] = (basis, Memo(basis[2]))
    return before[1]


def explain(
    model: Model,
    profile: Profile,
    rooms: Rooms,
    *,
    resting: frozenset[NodeId] = frozenset(),
    evictable: frozenset[ReplicaId] = frozenset(),
    memo: Memo | None = None,
    shared: bool = False,
) -> Explanation:
    """What the planner finds for one profile: where it goes, or what is in the way of each node. `shared`: of
    a refusal, who would have to leave may be what was found for another model that asks for the same."""
    memo = memo or Memo()
    ask, alike = memo.ask(model, profile, rooms)
    told = memo.refused(alike, profile.nodes, rooms, evictable, shared=shared)
    if told is not None:
        return replace(told, profile=profile.name, needs=_needs(profile, ask), memory=ask.memory)
    filtered: dict[Reason, list[NodeId]] = {}
    fitting: list[NodeId] = []
    near: list[NearMiss] = []
    scores: dict[NodeId, Score] = {}
    known = memo.of(alike)
    for node_id, room in rooms.items():  # By id: `claims.rooms` sorts them.
        found = _look(known, room, ask, evictable)
        if found.reason is None or found.near is not None:
            scores[node_id] = score(model, room, found.full, rests=node_id in resting)
        if found.reason is None:
            fitting.append(node_id)
            continue
        filtered.setdefault(found.reason, []).append(node_id)
        if found.near is not None:
            near.append(found.near)
    chosen = choose(groups(ask, rooms, fitting), profile.nodes, scores.__getitem__)
    emptied: tuple[NodeId, ...] | None = None
    evict = {miss.node_id: miss.evict for miss in near}
    if chosen is None and near:
        # The same search with all that is evictable gone, fewest leaving first.
        emptied = choose(
            groups(ask, rooms, scores),
            profile.nodes,
            lambda node_id: (len(evict.get(node_id, ())), scores[node_id]),
        )
    explanation = Explanation(
        profile=profile.name,
        fit=Fit.NOW if chosen is not None else Fit.NEVER if emptied is None else Fit.AFTER_EVICTION,
        needs=_needs(profile, ask),
        nodes_needed=profile.nodes,
        considered=len(rooms),
        filters=tuple(Filtered(reason, tuple(filtered[reason])) for reason in Reason if reason in filtered),
        fitting=tuple(fitting),
        near_misses=tuple(near),
        leaving=tuple(sorted({name for node_id in emptied or () for name in evict.get(node_id, ())})),
        spots=tuple(_spot(rooms[node_id], ask) for node_id in chosen or ()),
        memory=ask.memory,
        largest_bytes=_largest(rooms, ask) if Reason.TOO_LITTLE_MEMORY in filtered else None,
        ports_needed=ports_needed(ask.bands),
        ceiling=emptied or (),
    )
    memo.note(alike, explanation, rooms, evictable)
    return explanation


def _look(known: Looks, room: Room, ask: Ask, evictable: frozenset[ReplicaId]) -> Look:
    node_id = room.node.node_id
    here = room.holders & evictable
    key = (node_id, here) if here else node_id
    found = known.get(key)
    if found is None or found[0] is not room:
        reason = first_reason(room, ask, here)
        near = _near_miss(room, ask, here) if reason is Reason.HELD_BY_IDLE else None
        found = known[key] = (room, Look(reason, fullness(ask, room), near))
    return found[1]


def never_because(model: Model, profile: Profile, rooms: Rooms) -> str | None:
    """Why no waiting and no eviction ever makes it fit the nodes that are known; None: it may fit."""
    ask = ask_of(model, profile, _measured(rooms))
    filtered: dict[Reason, list[NodeId]] = {}
    able: list[NodeId] = []
    for node_id, room in rooms.items():
        reason = never(room, ask)
        if reason is None:
            able.append(node_id)
        else:
            filtered.setdefault(reason, []).append(node_id)
    most = max((len(group) for group in groups(ask, rooms, able)), default=0)
    if most >= profile.nodes:
        return None
    told = Explanation(
        profile=profile.name,
        fit=Fit.NEVER,
        needs=_needs(profile, ask),
        nodes_needed=profile.nodes,
        considered=len(rooms),
        filters=tuple(Filtered(reason, tuple(filtered[reason])) for reason in Reason if reason in filtered),
        fitting=(),
        near_misses=(),
        leaving=(),
        spots=(),
        largest_bytes=_largest(rooms, ask) if Reason.TOO_LITTLE_MEMORY in filtered else None,
    )
    return told.reason() + (f"; no fabric has more than {counted(most, 'node')} that can" if able else "")


def kept(
    model: Model, profile: Profile, rooms: Rooms, told: Explanation, leaving: frozenset[ReplicaId]
) -> list[tuple[NodeId, frozenset[DeviceId]]]:
    """What must stay free on each node where a refused replica will fit once `leaving` are gone: the devices
    that these do not bring."""
    ask = ask_of(model, profile, _measured(rooms))
    found = []
    for node_id in told.ceiling:
        room = rooms[node_id]
        fitting = [device for device in room.devices if suits(device, ask)]
        coming = sum(comes_free(device, ask, leaving) for device in fitting)
        free = [device.device_id for device in fitting if is_free(device, ask)]
        needed = max(0, ask.gpus_on(room) - coming)
        found.append((node_id, frozenset(free[len(free) - needed :] if needed else ())))
    return found


def _spot(room: Room, ask: Ask) -> Spot:
    free = [device for device in room.devices if suits(device, ask) and is_free(device, ask)]
    return Spot(room.node.node_id, tuple(device.device_id for device in free[: ask.gpus_on(room)]))


def _ports(room: Room, ask: Ask) -> tuple[tuple[str, int], ...]:
    found = lease(room.node.engine_ports, room.taken_ports, ask.bands)
    assert found is not None, f"{room.node.node_id}: chosen without ports"
    return found


def _near_miss(room: Room, ask: Ask, evictable: frozenset[ReplicaId]) -> NearMiss:
    needed = ask.gpus_on(room)
    fitting = [device for device in room.devices if suits(device, ask)]
    free = len([device for device in fitting if is_free(device, ask)])
    held: dict[ReplicaId, int] = {}
    for device in fitting:
        if device.replica_id is not None and comes_free(device, ask, evictable):
            held[device.replica_id] = held.get(device.replica_id, 0) + 1
    names = sorted(held)[:MAX_LEAVING]
    for size in range(1, len(names) + 1):
        for leaving in combinations(names, size):
            if free + sum(held[name] for name in leaving) >= needed:
                return NearMiss(room.node.node_id, free, needed, leaving)
    return NearMiss(room.node.node_id, free, needed, tuple(sorted(held)))


def _measured(rooms: Rooms) -> Measured:
    """One and the same in every room; nothing is known where no node is."""
    return next(iter(rooms.values())).measured if rooms else {}


def _largest(rooms: Rooms, ask: Ask) -> int | None:
    sizes = (
        device.memory_total_bytes
        for room in rooms.values()
        for device in room.devices
        if device.gpu_class == ask.gpu_class
    )
    return max((size for size in sizes if size is not None), default=None)


def _needs(profile: Profile, ask: Ask) -> str:
    gpus = f"{profile.gpus_per_node} {profile.gpu_class}"
    what = f"a whole node of at least {gpus}" if ask.whole_nodes else f"1 node with {gpus} free"
    if profile.nodes > 1:
        each = f"at least {gpus} each, wholly free," if ask.whole_nodes else f"{gpus} free each,"
        what = f"{profile.nodes} {'whole ' if ask.whole_nodes else ''}nodes with {each} on one fabric"
    if ask.memory.size_bytes is None or ask.memory.source is None:
        return what
    return f"{what}, {sized(ask.memory.size_bytes)} on each GPU ({ask.memory.source.value})"
