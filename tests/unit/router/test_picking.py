"""Picking an endpoint: load, weight, tiers, draws above eight, who is left when nobody is usable."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.choosing.affinity import Match
from llmgw_router.core.choosing.picking import (
    LOAD,
    NOBODY,
    PANIC,
    PLACE,
    PREFIX,
    SCAN_UP_TO,
    Field,
    earliest,
    pick,
)
from llmgw_router.core.config import Choosing

from .spots import Spot

RULES = Choosing()
CHANCES = [n / 97 for n in range(97)]
NOW = 10.0
#: In vain at most, to find one by chance.
DRAWS = 12


def spot(name: str, load: int = 0, *, until: float = 0.0, rest: float = 0.0, **more: int) -> Spot:
    made = Spot(name, load, **more)
    made.avoid_until, made.resting_until = max(until, rest), rest
    return made


def names(spots: list[Spot], *, tried: tuple[Spot, ...] = (), match: Match | None = None) -> set[str | None]:
    field = Field(spots)
    picked = (pick(field, RULES, now=NOW, chance=chance, tried=tried, match=match) for chance in CHANCES)
    return {one.name if one else None for one, _ in picked}


CASES = {
    "nothing to pick": ([], {None}),
    "the only one, however loaded": ([spot("a", 99)], {"a"}),
    "the only one, though it just failed": ([spot("a", until=99.0)], {"a"}),
    "the least loaded": ([spot("a", 3), spot("b", 2), spot("c", 5)], {"b"}),
    "equals share": ([spot("a"), spot("b"), spot("c")], {"a", "b", "c"}),
    "weight is a share of load": ([spot("a", 3, weight=4), spot("b", 1)], {"a"}),
    "a heavy one fills first": ([spot("a", weight=3), spot("b")], {"a"}),
    "an ejected one is avoided": ([spot("a", 9), spot("b", until=11.0)], {"a"}),
    "its time over, it is used again": ([spot("a", 9), spot("b", until=10.0)], {"b"}),
    "all failing: better one of them than none": ([spot("a", 1, until=11.0), spot("b", until=12.0)], {"b"}),
    "the first tier first, however loaded": ([spot("a", 50), spot("b", tier=1)], {"a"}),
    "the second tier when the first has nobody usable": ([spot("a", until=11.0), spot("b", tier=1)], {"b"}),
    "no tier has a usable one: the first that may be asked": (
        [spot("a", rest=11.0), spot("b", until=11.0, tier=1)],
        {"b"},
    ),
    "all asked to be left alone": ([spot("a", rest=11.0), spot("b", rest=12.0)], {None}),
}


@pytest.mark.parametrize("name", CASES)
def test_pick(name: str) -> None:
    spots, wanted = CASES[name]
    assert names(spots) == wanted


def test_a_tried_one_is_never_picked_again() -> None:
    a, b, c = spot("a"), spot("b", 5), spot("c", until=99.0)
    assert names([a, b, c], tried=(a,)) == {"b"}
    assert names([a, b, c], tried=(a, b)) == {"c"}
    assert names([a, b, c], tried=(a, b, c)) == {None}
    assert names([a], tried=(a,)) == {None}


def test_an_ejected_one_whose_time_is_over_is_tried_whatever_its_load() -> None:
    back, other, low = spot("back", 99), spot("other"), spot("low", tier=1)
    field = Field([back, other, low])
    for until, wanted in ((NOW, back), (NOW + 1, other)):
        back.avoid_until = until
        assert pick(field, RULES, now=NOW, chance=0.5, ejected=[back])[0] is wanted
    assert pick(field, RULES, now=NOW, chance=0.5, ejected=[back], tried=[back])[0] is other
    # Nobody is tried in a tier that is not needed.
    assert pick(field, RULES, now=NOW, chance=0.5, ejected=[low])[0] is other


def test_a_slow_one_gets_a_part_of_its_weight_and_no_prefixes() -> None:
    slow, fast = spot("slow"), spot("fast", 3)
    slow.slow(NOW, RULES)
    assert names([slow, fast]) == {"fast"}
    fast.load = 8
    assert names([slow, fast]) == {"slow"}
    match = Match([1], place=1, policy=PREFIX)
    match.worth = {"slow": 99.0}
    fast.load = 3
    assert names([slow, fast], match=match) == {"fast"}
    slow.not_slow()
    assert names([slow, fast]) == {"slow"}


def test_many_are_compared_two_at_a_time() -> None:
    spots = [spot(str(n), load=n) for n in range(SCAN_UP_TO * 4)]
    field = Field(spots)
    counts: Counter[str] = Counter()
    for n in range(10_000):
        endpoint = pick(field, RULES, now=0.0, chance=n / 10_000)[0]
        assert endpoint is not None
        counts[endpoint.name] += 1
    # The worst is picked only against itself, which cannot happen: the two are different.
    assert spots[-1].name not in counts
    assert set(counts) == {one.name for one in spots[:-1]}
    half = len(spots) // 2
    assert sum(counts[one.name] for one in spots[:half]) > 7_000


class Tier(tuple[Spot, ...]):
    """Counts how many of it are looked at."""

    looks: list[int]

    def __getitem__(self, index: Any) -> Any:
        self.looks.append(1)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Spot]:
        self.looks.append(len(self))
        return super().__iter__()


@pytest.mark.parametrize("match", [None, Match([1], place=7, policy=PREFIX)], ids=["plain", "with a prompt"])
def test_no_pick_looks_at_more_than_a_few_however_many_there_are(match: Match | None) -> None:
    """What it costs is in tests/bench/relay_steps.py, and is the same for 16 and for 10,000."""
    field = Field([spot(str(n), load=n % 5) for n in range(10_000)])
    tier = Tier(field.tiers[0])
    tier.looks = []
    field.tiers = (tier,)
    for chance in CHANCES:
        assert pick(field, RULES, now=0.0, chance=chance, match=match)[0] is not None
        assert 2 <= sum(tier.looks) <= 2 * DRAWS
        tier.looks.clear()


loads = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(1, 5),
        st.integers(0, 2),
        st.sampled_from([0.0, 5.0, 15.0]),
        st.sampled_from([0.0, 5.0, 15.0]),
        st.booleans(),
    ),
    max_size=30,
)


def _spots(drawn: list[tuple[int, int, int, float, float, bool]]) -> tuple[list[Spot], list[Spot]]:
    spots = [
        spot(f"e{n}", load, weight=weight, tier=tier, until=until, rest=rest)
        for n, (load, weight, tier, until, rest, _) in enumerate(drawn)
    ]
    return spots, [one for one, (*_, gone) in zip(spots, drawn, strict=True) if gone]


@given(
    drawn=loads,
    chance=st.floats(0, 1, exclude_max=True),
    place=st.none() | st.integers(0, 2**32),
    worths=st.dictionaries(st.integers(0, 30), st.floats(0, 100), max_size=4),
)
def test_a_usable_one_is_always_found_in_the_best_tier_that_has_one(
    drawn: list[tuple[int, int, int, float, float, bool]],
    chance: float,
    place: int | None,
    worths: dict[int, float],
) -> None:
    spots, tried = _spots(drawn)
    match = None
    if place is not None:
        match = Match([1], place=place, policy=PREFIX)
        match.worth = {f"e{n}": worth for n, worth in worths.items()}
    found, policy = pick(Field(spots), RULES, now=NOW, chance=chance, match=match, tried=tried)
    again = pick(Field(spots), RULES, now=NOW, chance=chance, match=match, tried=tried)
    assert again == (found, policy), "the same numbers give the same pick"
    usable = [one for one in spots if one.avoid_until <= NOW and one not in tried]
    asking = [one for one in spots if one.resting_until <= NOW and one not in tried]
    if usable:
        assert found in usable
        assert found is not None
        assert found.tier == min(one.tier for one in usable)
        assert policy in (LOAD, PLACE, PREFIX)
        peers = [one for one in usable if one.tier == found.tier]
        if len(peers) <= SCAN_UP_TO and len([one for one in spots if one.tier == found.tier]) <= SCAN_UP_TO:
            load = (found.load + 1) / found.share
            least = min((one.load + 1) / one.share for one in peers)
            if policy == LOAD:
                assert load <= least * 1.25
            else:
                assert load <= max(least * RULES.imbalance_ratio, least + RULES.imbalance)
    elif asking:
        assert (found in asking, policy) == (True, PANIC)
    else:
        assert (found, policy) == (None, NOBODY)


def test_who_asked_to_be_left_alone_says_how_long() -> None:
    assert earliest([spot("a", rest=17.5), spot("b", rest=12.25), spot("c", until=11.0)], NOW) == 2.25
    assert earliest([spot("a", until=11.0)], NOW) is None
