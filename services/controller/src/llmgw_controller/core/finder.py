"""Finder: the best nodes for many placements in a row, without a look at every node for each.

Of nodes that neither hold the model's weights nor a replica of it nor rest, all are marked alike but for how
full they are, and that is kept in order as placements go. Same filters, same score, same choice as
`placement.explain`, which tells why when nothing is found; a property test holds the two together.
"""

from bisect import bisect_left, insort

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.choosing import GroupKey, choose, group_keys
from llmgw_controller.core.claims import Rooms
from llmgw_controller.core.filters import Ask
from llmgw_controller.core.placement import Memo
from llmgw_controller.core.score import Fullness, Score, score
from llmgw_kit.ids import ModelId, NodeId

_NOBODY: frozenset[NodeId] = frozenset()


class _Shelf:
    """The nodes that fit one ask, fullest first, in each set that may hold a replica together."""

    def __init__(self) -> None:
        self.fits: dict[NodeId, Fullness] = {}
        self.sets: dict[GroupKey, list[tuple[Fullness, NodeId]]] = {}
        #: So much of the finder's log is in it.
        self.seen = 0

    def put(self, ask: Ask, rooms: Rooms, node_id: NodeId, memo: Memo) -> None:
        """Look at the node again."""
        room = rooms[node_id]
        keys = group_keys(ask, room)
        before = self.fits.pop(node_id, None)
        if before is not None:
            for key in keys:
                del self.sets[key][bisect_left(self.sets[key], (before, node_id))]
        look = memo.node(ask, room, frozenset())
        if look.reason is None:
            full = self.fits[node_id] = look.full
            for key in keys:
                insort(self.sets.setdefault(key, []), (full, node_id))


class Finder:
    """Over the rooms of one pass, as it fills them."""

    def __init__(self, rooms: Rooms, memo: Memo | None = None) -> None:
        self._rooms = rooms
        self._memo = memo or Memo()
        self._asks: dict[tuple[ModelId, str], Ask] = {}
        self._shelves: dict[Ask, _Shelf] = {}
        self._log: list[NodeId] = list(rooms)
        self._weights: dict[tuple[str, str], set[NodeId]] = {}
        self._models: dict[ModelId, set[NodeId]] = {}
        for node_id, room in rooms.items():
            for held in room.weights:
                self._weights.setdefault(held, set()).add(node_id)
            for name, _ in room.models:
                self._models.setdefault(name, set()).add(node_id)

    def changed(self, rooms: Rooms, node_id: NodeId) -> None:
        """These are the rooms now; they differ from those before in this node."""
        self._rooms = rooms
        self._log.append(node_id)
        for name, _ in rooms[node_id].models:
            self._models.setdefault(name, set()).add(node_id)

    def best(self, model: Model, profile: Profile, resting: frozenset[NodeId]) -> tuple[NodeId, ...] | None:
        """Where one replica more goes, by rank; None: nowhere now."""
        if not self._rooms:
            return None
        ask, shelf = self._shelf(model, profile)
        held: set[NodeId] | frozenset[NodeId] = _NOBODY
        if model.weights is not None:
            held = self._weights.get((model.name, model.weights.version), _NOBODY)
        special = {*held, *self._models.get(model.name, ()), *resting} & shelf.fits.keys()

        def mark(node_id: NodeId) -> Score:
            rests = node_id in resting
            return score(model, self._rooms[node_id], shelf.fits[node_id], rests=rests)

        by_set: dict[GroupKey, list[NodeId]] = {}
        for node_id in special:
            for key in group_keys(ask, self._rooms[node_id]):
                by_set.setdefault(key, []).append(node_id)
        candidates = [
            by_set.get(key, []) + _first(shelf.sets[key], special, profile.nodes)
            for key in sorted(shelf.sets)
        ]
        return choose(candidates, profile.nodes, mark)

    def _shelf(self, model: Model, profile: Profile) -> tuple[Ask, _Shelf]:
        key = (model.name, profile.name)
        if key not in self._asks:
            _, self._asks[key] = self._memo.ask(model, profile, self._rooms)
        ask = self._asks[key]
        shelf = self._shelves.setdefault(ask, _Shelf())
        for node_id in dict.fromkeys(self._log[shelf.seen :]):
            shelf.put(ask, self._rooms, node_id, self._memo)
        shelf.seen = len(self._log)
        return ask, shelf


def _first(nodes: list[tuple[Fullness, NodeId]], but: set[NodeId], count: int) -> list[NodeId]:
    found: list[NodeId] = []
    for _, node_id in nodes:
        if len(found) == count:
            break
        if node_id not in but:
            found.append(node_id)
    return found
