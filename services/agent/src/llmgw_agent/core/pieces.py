"""Which piece to ask of whom, when many nodes fetch one version together.

Sets of pieces are integers (llmgw_kit.pieces). The mirror is asked for "one of these" and sends what it has
sent least often; a peer is asked for one piece, the rarest that it has, by chance among equally rare ones.
A piece that was asked for is asked again of somebody else only when it is late, or when nothing else is left.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from llmgw_kit.pieces import bit_from, each_bit

#: Pieces asked of one peer at one time: one arrives while the next is on its way.
PER_PEER = 2
#: Pieces asked of the mirror at one time while there are peers: its link is what all of them share.
OF_MIRROR = 1
#: And while there are none.
OF_MIRROR_ALONE = 4
#: Askers of one piece, when it is late or the last.
MOST_ASKERS = 2


@dataclass(frozen=True)
class Source:
    """Somebody who has pieces. `have` of the mirror is everything it can be asked for; `usable`: it is not
    resting, slow, or banned (see sources.py)."""

    name: str
    have: int
    usable: bool = True


@dataclass(frozen=True)
class Asked:
    """One request under way. `piece`: None while the mirror has not said which it sends."""

    source: str
    piece: int | None
    since: float


@dataclass(frozen=True)
class Snapshot:
    """`missing`: what this node lacks and knows how to check. `room`: requests that may begin now. `late_s`:
    a piece asked for so long ago may be asked of another; None: nobody knows yet what is usual."""

    missing: int
    asked: tuple[Asked, ...]
    mirror: Source | None
    peers: tuple[Source, ...]
    room: int
    late_s: float | None = None


@dataclass(frozen=True)
class Ask:
    """To the mirror: send any one of `pieces`. To a peer `pieces` is one."""

    source: str
    pieces: int


def plan_next(snapshot: Snapshot, now: float, chance: Callable[[], float]) -> tuple[Ask, ...]:
    """Requests to begin now. `chance` gives numbers from 0 to below 1."""
    return tuple(_Plan(snapshot, now, chance).asks())


class _Plan:
    """One decision being made."""

    def __init__(self, snapshot: Snapshot, now: float, chance: Callable[[], float]) -> None:
        self._snapshot, self._chance = snapshot, chance
        self._room = snapshot.room
        #: Requests to each source, those of this plan included.
        self._busy = Counter(one.source for one in snapshot.asked)
        self._askers: dict[int, list[str]] = {}
        late = 0
        for one in snapshot.asked:
            if one.piece is not None:
                self._askers.setdefault(one.piece, []).append(one.source)
                if snapshot.late_s is not None and now - one.since > snapshot.late_s:
                    late |= 1 << one.piece
        self._asked = _union(1 << piece for piece in self._askers)
        #: Asked for by nobody.
        self._open = snapshot.missing & ~self._asked
        self._late = late & snapshot.missing
        self._width = max(1, snapshot.missing.bit_length())

    def asks(self) -> list[Ask]:
        snapshot = self._snapshot
        made: list[Ask] = []
        usable = [peer for peer in snapshot.peers if peer.usable]
        held = _union(peer.have for peer in usable)
        # What no peer has can only come from the mirror, and is what all the others wait for. When peers have
        # everything, the mirror's link is one more to use.
        made += self._of_mirror(
            self._open & ~held or self._open | self._spare(snapshot.mirror),
            most=OF_MIRROR if usable else OF_MIRROR_ALONE,
        )
        made += self._of_peers(usable)
        if not self._open and self._room > 0:
            made += self._again(usable)
        return made

    def _of_mirror(self, pieces: int, *, most: int) -> list[Ask]:
        mirror = self._snapshot.mirror
        if mirror is None or not mirror.usable:
            return []
        pieces &= mirror.have
        # What is on its way without a name yet is one of these, too.
        nameless = sum(one.piece is None for one in self._snapshot.asked)
        count = min(most - self._busy[mirror.name], self._room, pieces.bit_count() - nameless)
        self._room -= max(0, count)
        return [Ask(mirror.name, pieces)] * max(0, count)

    def _of_peers(self, usable: Sequence[Source]) -> list[Ask]:
        if self._room <= 0 or not usable:
            return []
        planes = counted(peer.have for peer in self._snapshot.peers)
        made: list[Ask] = []
        # Each peer once a turn, in an order of chance: nobody's favourite is everybody's.
        for _ in range(PER_PEER):
            for peer in _shuffled(usable, self._chance):
                if self._room <= 0:
                    return made
                if self._busy[peer.name] >= PER_PEER:
                    continue
                # A late piece is asked for again of whoever is not late with it.
                if pieces := (self._open | self._spare(peer)) & peer.have:
                    made.append(self._take(peer, rarest(pieces, planes)))
        return made

    def _take(self, peer: Source, pieces: int) -> Ask:
        piece = bit_from(pieces, int(self._chance() * self._width))
        self._open &= ~(1 << piece)
        self._late &= ~(1 << piece)
        self._asked |= 1 << piece
        self._askers.setdefault(piece, []).append(peer.name)
        self._busy[peer.name] += 1
        self._room -= 1
        return Ask(peer.name, 1 << piece)

    def _spare(self, source: Source | None) -> int:
        """What is late with others and may be asked of this one too."""
        if source is None or not self._late:
            return 0
        return _union(1 << piece for piece in each_bit(self._late) if self._may_join(piece, source.name))

    def _may_join(self, piece: int, name: str) -> bool:
        askers = self._askers.get(piece, [])
        return len(askers) < MOST_ASKERS and name not in askers

    def _again(self, usable: Sequence[Source]) -> list[Ask]:
        """The end: all that is missing was asked for, and each of it may be asked of one more."""
        made = []
        for peer in _shuffled(usable, self._chance):
            if self._room <= 0:
                break
            if self._busy[peer.name] >= PER_PEER:
                continue
            pieces = self._snapshot.missing & self._asked & peer.have
            if joined := _union(1 << one for one in each_bit(pieces) if self._may_join(one, peer.name)):
                made.append(self._take(peer, joined))
        return made


def counted(haves: Iterable[int]) -> list[int]:
    """How many have each piece, as binary digits: plane n holds the pieces whose count has digit n set."""
    planes: list[int] = []
    for carry in haves:
        for n, plane in enumerate(planes):
            planes[n], carry = plane ^ carry, plane & carry
            if not carry:
                break
        if carry:
            planes.append(carry)
    return planes


def rarest(pieces: int, planes: Sequence[int]) -> int:
    """Those of a set, not empty, that the fewest have."""
    for plane in reversed(planes):
        if fewer := pieces & ~plane:
            pieces = fewer
    return pieces


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _shuffled(sources: Sequence[Source], chance: Callable[[], float]) -> list[Source]:
    rest = list(sources)
    for place in range(len(rest) - 1):
        other = place + int(chance() * (len(rest) - place))
        rest[place], rest[other] = rest[other], rest[place]
    return rest
