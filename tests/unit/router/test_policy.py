from collections import Counter
from dataclasses import dataclass

import pytest

from llmgw_router.core.policy import SCAN_UP_TO, cool_down_s, pick


@dataclass(eq=False)
class Spot:
    name: str
    load: int = 0
    weight: int = 1
    avoid_until: float = 0.0

    def outstanding(self) -> int:
        return self.load


CHANCES = [n / 97 for n in range(97)]


def names(candidates: list[Spot], **more: object) -> set[str | None]:
    picked = (pick(candidates, now=10.0, chance=chance, **more) for chance in CHANCES)  # type: ignore[arg-type]
    return {spot.name if spot else None for spot in picked}


CASES = {
    "nothing to pick": ([], {None}),
    "the only one, however loaded": ([Spot("a", 99)], {"a"}),
    "the only one, though it just failed": ([Spot("a", avoid_until=99.0)], {"a"}),
    "the least loaded": ([Spot("a", 3), Spot("b", 2), Spot("c", 5)], {"b"}),
    "equals share": ([Spot("a"), Spot("b"), Spot("c")], {"a", "b", "c"}),
    "weight is a share of load": ([Spot("a", 3, weight=4), Spot("b", 1)], {"a"}),
    "a heavy one fills first": ([Spot("a", weight=3), Spot("b")], {"a"}),
    "a failing one is avoided": ([Spot("a", 9), Spot("b", avoid_until=11.0)], {"a"}),
    "its time over, it is used again": ([Spot("a", 9), Spot("b", avoid_until=10.0)], {"b"}),
    "all failing: better one of them than none": (
        [Spot("a", 1, avoid_until=11.0), Spot("b", avoid_until=12.0)],
        {"b"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_pick(name: str) -> None:
    candidates, wanted = CASES[name]
    assert names(candidates) == wanted


def test_a_tried_one_is_never_picked_again() -> None:
    a, b, c = Spot("a"), Spot("b", 5), Spot("c", avoid_until=99.0)
    assert names([a, b, c], tried=[a]) == {"b"}
    assert names([a, b, c], tried=[a, b]) == {"c"}
    assert names([a, b, c], tried=[a, b, c]) == {None}
    assert names([a], tried=[a]) == {None}


def test_many_are_compared_two_at_a_time() -> None:
    spots = [Spot(str(n), load=n) for n in range(SCAN_UP_TO * 4)]
    counts = Counter(
        spot.name for n in range(10_000) if (spot := pick(spots, now=0.0, chance=n / 10_000)) is not None
    )
    # The worst is picked only against itself, which cannot happen: the two are different.
    assert spots[-1].name not in counts
    assert set(counts) == {spot.name for spot in spots[:-1]}
    half = len(spots) // 2
    assert sum(counts[spot.name] for spot in spots[:half]) > 7_000


def test_the_same_numbers_give_the_same_pick() -> None:
    spots = [Spot(str(n), load=n % 3) for n in range(20)]
    for chance in CHANCES:
        assert pick(spots, now=0.0, chance=chance) is pick(spots, now=0.0, chance=chance)


def test_cool_down_grows_and_is_bounded() -> None:
    assert [cool_down_s(n) for n in (1, 2, 3, 4, 5, 6, 7, 1000)] == [1, 2, 4, 8, 16, 30, 30, 30]
