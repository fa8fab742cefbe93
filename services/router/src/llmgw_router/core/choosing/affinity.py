"""Who has seen the beginning of a prompt: chained hashes of its text, in a bounded map. Pure.

An engine that has computed a prefix need not compute it again; a prompt sent elsewhere must. A prompt is
cut at fixed places, each block's hash goes into the next one's, and the map says for each hash which
endpoints were sent a prompt that began so. The hash is a stable one (CRC-32): workers share no map, but
prompts that none of them knows find the same place in all of them (picking.py).

Keys hold the scope (pool, model, tenant) beside the hash (HO24). A collision, one in 2^32 within a
scope, costs a computed prefix and nothing else.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final
from zlib import crc32

from llmgw_router.core.config import Choosing

#: Where a prompt is cut, in bytes of its canonical text: finely where most prompts differ, coarsely far
#: behind. The first cut is about 64 tokens: what is shorter is computed faster than it is looked up.
CUTS: Final = (
    256,
    512,
    *range(1024, 8 * 1024 + 1, 1024),
    *range(10 * 1024, 32 * 1024 + 1, 2 * 1024),
    *range(40 * 1024, 128 * 1024 + 1, 8 * 1024),
)
_PIECES: Final = tuple(slice(begin, end) for begin, end in zip((0, *CUTS), CUTS, strict=False))
#: By the number of cuts that a text reaches: its pieces.
_PIECES_OF: Final = tuple(_PIECES[:many] for many in range(len(CUTS) + 1))
#: As much of a prompt as is ever looked at.
MOST_BYTES: Final = CUTS[-1]

#: A prefix may be known to this many endpoints: a busy one spills over, and comes back.
_OWNERS: Final = 4

#: Of a prompt that nobody knows. Shared, and never changed.
_NOBODY: Final[Mapping[str, float]] = {}
_NOT_FRESH: Final[tuple[int, tuple[str, ...]]] = (0, ())


class Match:
    """What is known of one prompt or session, for picking.pick."""

    __slots__ = ("_depths", "chain", "fresh", "place", "policy", "settled", "worth")

    def __init__(self, chain: Sequence[int], place: int, policy: str) -> None:
        #: Keys of the map, shortest prefix first; empty where nothing can be learnt.
        self.chain = chain
        #: Where it belongs among equals.
        self.place = place
        #: How a pick is called that `worth` has decided.
        self.policy = policy
        #: Endpoint -> requests of load that what it knows outweighs.
        self.worth = _NOBODY
        self._depths: Mapping[str, int] | None = None
        #: How many keys, from the first on, are fresh in the map, all with these same owners.
        self.fresh = _NOT_FRESH
        #: Endpoints for which there is nothing to learn: they were sent all of it, and lately.
        self.settled: tuple[str, ...] = ()

    @property
    def depths(self) -> Mapping[str, int] | None:
        """Endpoint -> how many of `chain` it knows. None: this is no prompt. For who tells why; made then."""
        return dict.fromkeys(self.settled, len(self.chain)) if self.settled else self._depths

    @depths.setter
    def depths(self, depths: Mapping[str, int]) -> None:
        self._depths = depths


@lru_cache(maxsize=4096)
def scope_of(pools: tuple[str, ...] | None, model: str, tenant: str | None) -> int:
    """A number for (pool, model, tenant): the same in every worker and router."""
    names = "\x1f".join(("\x1e".join(pools or ()), model, tenant or ""))
    return crc32(names.encode("utf-8", "surrogatepass"))


def chain_of(text: bytes, scope: int) -> list[int]:
    """Keys of the prefixes of `text`, shortest first; what lies behind the last cut is left out."""
    value = scope
    high = scope << 32
    chain: list[int] = []
    for piece in _PIECES_OF[bisect_right(CUTS, len(text))]:
        value = crc32(text[piece], value)
        chain.append(high | value)
    return chain


def session_key(session: bytes, scope: int) -> int:
    """The key of a session. A bit above the scope's keeps it apart from prompts."""
    return 1 << 64 | scope << 32 | crc32(session, scope)


class PrefixMap:
    """Key -> names of the endpoints that know it, the latest to learn it first.

    Two generations instead of a list in order of use: what is used moves into the young one, and when
    that is full it becomes the old one, whose rest is forgotten. A look-up then writes nothing.
    """

    def __init__(self, entries: int) -> None:
        self._half = max(1, entries // 2)
        self._young: dict[int, tuple[str, ...]] = {}
        self._old: dict[int, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def resize(self, entries: int) -> None:
        """Another bound from now on."""
        self._half = max(1, entries // 2)

    def find(self, match: Match, rules: Choosing) -> None:
        """Fill in who knows how much of it."""
        chain = match.chain
        young = self._young.get
        owners = young(chain[0])
        if owners is not None:
            for key in chain:
                if young(key) is not owners:
                    break
            else:
                # As nearly always where it is known at all: the whole of it, to the same ones.
                known = len(chain)
                match.worth = dict.fromkeys(owners, CUTS[known - 1] * rules.prefix_worth / 1024)
                match.fresh = (known, owners)
                match.settled = owners
                return
        self._find_parts(match, rules)

    def _find_parts(self, match: Match, rules: Choosing) -> None:
        """The same where one knows more of it than another, or not all is known, or not lately."""
        match.settled = ()
        young, old = self._young.get, self._old.get
        depths: dict[str, int] = {}
        last: tuple[str, ...] | None = None
        known = fresh = 0
        for key in match.chain:
            owners = young(key)
            if owners is None:
                owners = old(key)
                if owners is None:
                    break
            elif fresh == known and (owners is last or last is None):
                fresh += 1
            if owners is not last:
                if last is not None:
                    for name in last:
                        depths[name] = known
                last = owners
            known += 1
        match.depths = depths
        if last is None:
            return
        for name in last:
            depths[name] = known
        each = rules.prefix_worth / 1024
        match.worth = {name: CUTS[depth - 1] * each for name, depth in depths.items()}
        match.fresh = (fresh, last if fresh == known else ())

    def find_session(self, match: Match) -> None:
        """The same for a session: who served it last outweighs any load within the bound."""
        (key,) = match.chain
        owners = self._young.get(key) or self._old.get(key)
        if owners is not None:
            match.worth = {owners[0]: float("inf")}

    def learn(self, match: Match, name: str) -> None:
        """A prompt with these keys goes to this endpoint."""
        chain = match.chain
        known, owners = match.fresh
        # Not put first again where it is known already: under load a prompt goes to all that know it in turn,
        # and each of its keys would be written each time.
        start = known if name in owners else 0
        if start == len(chain):
            return
        if len(self._young) + len(chain) - start > self._half:
            # Before a chain, never within one: its short prefixes must not be forgotten before its long ones.
            self._old, self._young = self._young, {}
            start = 0
        young, old = self._young, self._old
        before: tuple[str, ...] | None = None
        alone: tuple[str, ...] = (name,)
        mine = alone
        for key in chain[start:]:
            owners_now = young.get(key)
            if owners_now is None:
                owners_now = old.get(key)
            if owners_now is None:
                young[key] = alone
            elif owners_now[0] == name:
                young[key] = owners_now
            else:
                if owners_now is not before:
                    before = owners_now
                    others = [one for one in owners_now if one != name]
                    mine = (name, *others[: _OWNERS - 1])
                young[key] = mine
