"""Which endpoint gets a request: the least loaded, unless another one knows its prompt and is not much
busier.

Pure: loads, known prefixes, the clock's reading and chance come in; the same numbers give the same pick.
The cost does not depend on how many endpoints there are: up to SCAN_UP_TO are compared, of more a few
are drawn.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from llmgw_router.core.choosing.affinity import Match
from llmgw_router.core.config import Choosing

#: Up to this many endpoints all are compared; above, two drawn at random, which is nearly as good
#: (Mitzenmacher, "The power of two choices", 2001) and costs the same for any number.
SCAN_UP_TO: Final = 8
#: Draws in vain before the whole tier is looked through: with half of it ejected, one pick in 4,000.
_DRAWS: Final = 12
#: Loads within this of the least count as equal where a prompt nobody knows finds its place: so several
#: workers and routers that have not met it put it on the same endpoint (consistent hashing with bounded
#: loads, Mirrokni et al. 2016, has the same 1.25).
_NEARLY: Final = 1.25

# Which rule decided. Strings, as they are shown in `x-llmgw-decision`.
#: There is no other endpoint.
ONLY: Final = "only"
LOAD: Final = "load"
#: Load, and among equals the place that a prompt's beginning hashes to.
PLACE: Final = "place"
PREFIX: Final = "prefix"
SESSION: Final = "session"
#: Nobody is usable: all that did not ask to be left alone are used.
PANIC: Final = "panic"
#: An ejected endpoint whose time is over: it gets the next request, whatever its load, as nothing else
#: would ever show that it is back.
TRIAL: Final = "trial"
#: All have asked to be left alone, or were tried.
NOBODY: Final = "nobody"


class Candidate(Protocol):
    """What a pick needs to know of an endpoint; core/choosing/standing.py has most of it."""

    name: str
    #: Smaller tiers are used first.
    tier: int
    #: Its part of the load, as a weight; smaller while it is slow.
    share: float
    #: Where a prompt's beginning hashes to it; a stable hash of the name.
    salt: int
    avoid_until: float
    resting_until: float
    slow_until: float

    def outstanding(self) -> int:
        """Requests running there, over all workers."""


C = TypeVar("C", bound=Candidate)


class Field(Generic[C]):
    """The endpoints a request may be sent to, best tier first. Made once per change of the table."""

    __slots__ = ("by_name", "contested", "endpoints", "tiers")

    def __init__(self, endpoints: Sequence[C]) -> None:
        self.endpoints = tuple(endpoints)
        tiers: dict[int, list[C]] = {}
        for endpoint in self.endpoints:
            tiers.setdefault(endpoint.tier, []).append(endpoint)
        self.tiers: tuple[tuple[C, ...], ...] = tuple(tuple(tiers[tier]) for tier in sorted(tiers))
        #: Whether there is anything to choose: with one endpoint a tier nobody needs to read prompts.
        self.contested = any(len(tier) > 1 for tier in self.tiers)
        self.by_name: dict[str, C] = {endpoint.name: endpoint for endpoint in self.endpoints}


#: The endpoint, and the rule; None only with NOBODY. A plain tuple: a named one costs a call to make.
Pick = tuple[C | None, str]


def pick(
    field: Field[C],
    rules: Choosing,
    *,
    now: float,
    chance: float,
    match: Match | None = None,
    tried: Container[C] = (),
    ejected: Sequence[C] = (),
) -> Pick[C]:
    """The best endpoint of the first tier that has a usable one.

    `chance` in [0, 1) breaks ties and makes the draws. When no tier has a usable one, all are used that
    did not ask to be left alone: a failing engine may have recovered, an empty answer surely fails.
    `ejected`: those of the field that are, few as they are.
    """
    due = [c for c in ejected if c.avoid_until <= now and c not in tried] if ejected else None
    for tier in field.tiers:
        usable: Sequence[C]
        if len(tier) <= SCAN_UP_TO:
            usable = _usable(tier, now, tried)
        else:
            usable = _drawn(tier, now, chance, tried, match)
        if usable and due:
            mine = [c for c in due if c.tier == tier[0].tier]
            if mine and not tried:
                return mine[0], TRIAL
            # A request that has failed once has done its part: its second try goes where answers come from.
            usable = [c for c in usable if c not in mine] or usable
        if usable:
            if match is None:
                return _least(usable, chance), LOAD
            if len(tier) > SCAN_UP_TO:
                usable = _with_owners(list(usable), field, tier[0].tier, match, now, tried)
            return _matched(usable, rules, chance, match)
    for tier in field.tiers:
        asking = [c for c in tier if c.resting_until <= now and c not in tried]
        if asking:
            return _least(asking, chance), PANIC
    return None, NOBODY


def _usable(tier: Sequence[C], now: float, tried: Container[C]) -> Sequence[C]:
    """Those that nobody avoids and that were not tried; the tier itself where that is all of it."""
    if not tried:
        for c in tier:
            if c.avoid_until > now:
                break
        else:
            return tier
    return [c for c in tier if c.avoid_until <= now and c not in tried]


def earliest(endpoints: Iterable[Candidate], now: float) -> float | None:
    """Seconds until the first of those that asked to be left alone is asked again. None: nobody asked."""
    waits = [c.resting_until - now for c in endpoints if c.resting_until > now]
    return min(waits) if waits else None


def _least(usable: Sequence[C], chance: float) -> C:
    n = len(usable)
    start = int(chance * n)
    best = usable[start]
    load, share = best.outstanding() + 1, best.share
    for offset in range(1, n):
        other = usable[(start + offset) % n]
        other_load = other.outstanding() + 1
        # other_load / other.share < load / share, without dividing.
        if other_load * share < load * other.share:
            best, load, share = other, other_load, other.share
    return best


def _matched(usable: Sequence[C], rules: Choosing, chance: float, match: Match) -> Pick[C]:
    loads: list[float] = []
    least = 0.0
    for candidate in usable:
        load = (candidate.outstanding() + 1) / candidate.share
        loads.append(load)
        if load < least or not least:
            least = load
    worth = match.worth
    if worth:
        # Beyond this the load decides, whatever is known where (HO23).
        bound = max(least * rules.imbalance_ratio, least + rules.imbalance)
        best: C | None = None
        gain = -least
        for index, candidate in enumerate(usable):
            known = worth.get(candidate.name)
            if known is not None and loads[index] <= bound and not candidate.slow_until:
                value = known - loads[index]
                if value > gain:
                    best, gain = candidate, value
        if best is not None:
            return best, match.policy
    # Nobody knows it, or those who do are too busy: the load decides, tree sizes and the like never do.
    near = [c for c, load in zip(usable, loads, strict=True) if load <= least * _NEARLY]
    if len(near) == 1:
        return near[0], LOAD
    place = match.place
    return max(near, key=lambda c: ((place ^ c.salt) * 0x9E3779B1 & 0xFFFFFFFF, c.name)), PLACE


def _drawn(tier: Sequence[C], now: float, chance: float, tried: Container[C], match: Match | None) -> list[C]:
    """Two usable ones by chance; with a prompt also two by its place, before them."""
    found: list[C] = []
    if match is not None:
        _draw(tier, now, tried, match.place, found, 2)
    _draw(tier, now, tried, int(chance * (1 << 53)), found, len(found) + 2)
    if not found:
        found = [c for c in tier if c.avoid_until <= now and c not in tried]
        if len(found) > SCAN_UP_TO:
            found = found[:SCAN_UP_TO]
    return found


def _draw(tier: Sequence[C], now: float, tried: Container[C], seed: int, found: list[C], until: int) -> None:
    n = len(tier)
    for _ in range(_DRAWS):
        # A linear congruential generator (Knuth's MMIX): its upper bits are good enough to draw with.
        seed = (seed * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        candidate = tier[(seed >> 33) * n >> 31]
        if candidate.avoid_until <= now and candidate not in tried and candidate not in found:
            found.append(candidate)
            if len(found) >= until:
                return


def _with_owners(
    usable: list[C], field: Field[C], tier: int, match: Match, now: float, tried: Container[C]
) -> list[C]:
    for name in match.worth:
        owner = field.by_name.get(name)
        if (
            owner is not None
            and owner.tier == tier
            and owner.avoid_until <= now
            and owner not in tried
            and owner not in usable
        ):
            usable.append(owner)
    return usable
