"""Victims: the cheapest set of idle replicas whose leaving makes room for one more of a model.

Pure search around the planner's own `explain`, which alone says what fits. Cheapest is the sum of what
each costs to bring back; among equals the fewer, then the longer idle. Every set is as small as it can
be: without any one of its members the replica would not fit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from llmgw_controller.core.catalog import Model, Profile
from llmgw_controller.core.choosing import groups
from llmgw_controller.core.claims import Room, Rooms
from llmgw_controller.core.explain import Fit, Reason
from llmgw_controller.core.filters import Ask, ask_of, first_reason
from llmgw_controller.core.placement import Memo, explain
from llmgw_kit.ids import NodeId, ReplicaId

#: On one node all sets of so many replicas are tried; of more, the dearest are spared one by one.
TRIED_MOST = 8


@dataclass(frozen=True)
class Candidate:
    """An idle replica that may leave."""

    replica_id: ReplicaId
    cost_s: float
    idle_s: float
    #: Where it holds devices.
    node_ids: frozenset[NodeId]


Candidates = Mapping[ReplicaId, Candidate]

#: Smaller is better.
Price = tuple[float, int, float]


@dataclass(frozen=True)
class Choice:
    profile: str
    #: By id.
    leaving: tuple[ReplicaId, ...]


def choose(model: Model, rooms: Rooms, candidates: Candidates, memo: Memo | None = None) -> Choice | None:
    """None: not even with all of them gone would it fit, so none need go; or it fits as it is."""
    everyone, memo = frozenset(candidates), memo or Memo()
    best: tuple[Price, int, tuple[ReplicaId, ...]] | None = None
    for position, profile in enumerate(model.profiles):
        ceiling = explain(model, profile, rooms, evictable=everyone, memo=memo)
        if ceiling.fit is Fit.NOW:
            return None
        if ceiling.fit is Fit.NEVER:
            continue
        near = {miss.node_id: len(miss.evict) for miss in ceiling.near_misses}
        search = _Search(model, profile, candidates, memo)
        for found in search.sets(rooms, near, ceiling.fitting):
            ranked = (search.price(found), position, tuple(sorted(found)))
            if best is None or ranked < best:
                best = ranked
    return None if best is None else Choice(model.profiles[best[1]].name, best[2])


class _Search:
    """For one profile."""

    def __init__(self, model: Model, profile: Profile, candidates: Candidates, memo: Memo) -> None:
        self._model = model
        self._profile = profile
        self._all = candidates
        self._memo = memo
        #: By the number of nodes it is asked for.
        self._asks: dict[int, Ask] = {}
        self._known: dict[tuple[NodeId, frozenset[ReplicaId]], frozenset[ReplicaId] | None] = {}
        self._held: dict[NodeId, list[ReplicaId]] = {}
        for name in sorted(candidates):
            for node_id in candidates[name].node_ids:
                self._held.setdefault(node_id, []).append(name)

    def price(self, names: Iterable[ReplicaId]) -> Price:
        found = [self._all[name] for name in names]
        return sum(one.cost_s for one in found), len(found), -sum(one.idle_s for one in found)

    def sets(
        self, rooms: Rooms, near: Mapping[NodeId, int], fitting: tuple[NodeId, ...]
    ) -> Iterable[frozenset[ReplicaId]]:
        """The best of each place. `near`: nodes that come free, and the fewest who must leave each."""
        if self._profile.nodes == 1:
            return self._single(rooms, near)
        return self._gangs(rooms, near, fitting)

    def _single(self, rooms: Rooms, near: Mapping[NodeId, int]) -> Iterable[frozenset[ReplicaId]]:
        best: frozenset[ReplicaId] | None = None
        # No set of a node is cheaper than its bound: where that is above the best, nothing need be searched.
        for bound, node_id in sorted((self._bound(one, least), one) for one, least in near.items()):
            if best is not None and bound >= self.price(best):
                break
            found = self._on(rooms, node_id, self._profile, best, least=near[node_id])
            if found is not None and (best is None or self._key(found) < self._key(best)):
                best = found
        return [] if best is None else [best]

    def _gangs(
        self, rooms: Rooms, near: Mapping[NodeId, int], fitting: tuple[NodeId, ...]
    ) -> Iterable[frozenset[ReplicaId]]:
        """In each fabric the cheapest nodes, one after the other; what leaves one may free another too."""
        alone = replace(self._profile, nodes=1)
        by_fabric: dict[str, dict[NodeId, Room]] = {}
        for node_id, room in rooms.items():
            for name in room.node.fabrics:
                by_fabric.setdefault(name, {})[node_id] = room
        for fabric in sorted({name for node_id in (*near, *fitting) for name in rooms[node_id].node.fabrics}):
            inside = by_fabric[fabric]
            if not self._fits(self._profile, inside, frozenset(self._all)):
                continue
            taken = {node_id for node_id in fitting if node_id in inside}
            leaving: frozenset[ReplicaId] = frozenset()
            while len(taken) < self._profile.nodes:
                options = [
                    (self._key(found - leaving), node_id, found)
                    for node_id in inside
                    if node_id in near and node_id not in taken
                    if (found := self._freed(inside, node_id, alone, leaving, near[node_id])) is not None
                ]
                if not options:
                    break
                _, node_id, found = min(options)
                taken.add(node_id)
                leaving |= found
            if self._fits(self._profile, inside, leaving):
                yield self._spared(inside, self._profile, leaving)
            else:
                # What one node lacks beside devices may be on another: begin with all, and spare.
                yield self._spared(inside, self._profile, self._inside(inside))

    def _inside(self, rooms: Rooms) -> frozenset[ReplicaId]:
        """All that hold anything there: nobody else need be asked."""
        return frozenset(name for node_id in rooms for name in self._held.get(node_id, ()))

    def _freed(
        self, rooms: Rooms, node_id: NodeId, alone: Profile, leaving: frozenset[ReplicaId], least: int
    ) -> frozenset[ReplicaId] | None:
        """As `_on`, found once for each set that leaves this node anyhow."""
        here = leaving.intersection(self._held.get(node_id, ()))
        if (node_id, here) not in self._known:
            more = max(0, least - len(here))
            self._known[node_id, here] = self._on(rooms, node_id, alone, None, given=here, least=more)
        found = self._known[node_id, here]
        return None if found is None else found | leaving

    def _on(
        self,
        rooms: Rooms,
        node_id: NodeId,
        profile: Profile,
        best: frozenset[ReplicaId] | None,
        *,
        given: frozenset[ReplicaId] = frozenset(),
        least: int = 0,
    ) -> frozenset[ReplicaId] | None:
        """The cheapest set that frees this node, with those of `given` leaving anyhow; None: none does, or
        none that is cheaper than `best`."""
        room = {node_id: rooms[node_id]}
        names = [one for one in self._held.get(node_id, ()) if one not in given]
        if len(names) > TRIED_MOST:
            everyone = given | frozenset(names)
            return self._spared(room, profile, everyone) if self._fits(profile, room, everyone) else None
        tries = sorted(
            (self._key(some), some)
            for size in range(least, len(names) + 1)
            for some in map(frozenset, combinations(names, size))
        )
        for key, some in tries:
            if best is not None and key >= self._key(best):
                return None
            if self._fits(profile, room, given | some):
                return given | some
        return None

    def _spared(self, rooms: Rooms, profile: Profile, names: frozenset[ReplicaId]) -> frozenset[ReplicaId]:
        """`names` without whom it need not: the dearest are asked first."""
        for name in sorted(names, key=lambda one: (-self._all[one].cost_s, self._all[one].idle_s, one)):
            if self._fits(profile, rooms, names - {name}):
                names = names - {name}
        return names

    def _fits(self, profile: Profile, rooms: Rooms, leaving: frozenset[ReplicaId]) -> bool:
        """The filters that `explain` asks, without its words: asked for each set of each node, and of each
        fabric for each member of a set. A node answers alike whoever leaves elsewhere."""
        if not rooms:
            return False
        ask = self._asks.get(profile.nodes)
        if ask is None:
            # All rooms share what was measured.
            measured = next(iter(rooms.values())).measured
            own = ask_of(self._model, profile, measured)
            ask = self._asks[profile.nodes] = self._memo.alike(own, rooms)
        looked, held = self._memo.sets(ask), self._held
        able = []
        for node_id, room in rooms.items():
            key = (node_id, leaving.intersection(held.get(node_id, ())))
            known = looked.get(key)
            if known is None or known[0] is not room:
                fits = first_reason(room, ask, key[1]) in (None, Reason.HELD_BY_IDLE)
                known = looked[key] = (room, fits)
            if known[1]:
                able.append(node_id)
        return any(len(group) >= profile.nodes for group in groups(ask, rooms, able))

    def _bound(self, node_id: NodeId, least: int) -> Price:
        """Of any set of so many or more there."""
        here = [self._all[name] for name in self._held.get(node_id, ())]
        cheapest = sum(sorted(one.cost_s for one in here)[:least])
        return cheapest, least, -sum(one.idle_s for one in here)

    def _key(self, names: frozenset[ReplicaId]) -> tuple[Price, tuple[ReplicaId, ...]]:
        return self.price(names), tuple(sorted(names))
