"""Slow endpoints are told from their peers; a decision is told in one line."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.choosing.affinity import CUTS, Match
from llmgw_router.core.choosing.decision import decide
from llmgw_router.core.choosing.picking import PREFIX, Field
from llmgw_router.core.choosing.speed import Speed, _beside_others, outliers
from llmgw_router.core.choosing.standing import Reason, Standing
from llmgw_router.core.config import Choosing

from .spots import Spot

RULES = Choosing()


def speed(first_s: float, rate: float, samples: int = 30) -> Speed:
    made = Speed()
    for _ in range(samples):
        made.began(first_s)
        made.streamed(int(rate), 1.0)
    return made


def slow_ones(*speeds: Speed, least: int = 20) -> set[int]:
    return outliers(list(enumerate(speeds)), factor=4.0, min_samples=least)


def test_one_that_begins_late_or_flows_slowly_is_found() -> None:
    fine = [speed(0.2, 1000.0), speed(0.3, 900.0), speed(0.25, 1100.0)]
    assert slow_ones(*fine) == set()
    assert slow_ones(*fine, speed(3.0, 1000.0)) == {3}
    assert slow_ones(*fine, speed(0.2, 100.0)) == {3}
    # Of two, each is measured against the other.
    assert slow_ones(speed(0.2, 1000.0), speed(2.0, 1000.0)) == {1}


def test_too_little_is_known_or_too_little_is_lost() -> None:
    assert slow_ones(speed(9.0, 1.0)) == set(), "one alone"
    assert slow_ones(speed(0.2, 1000.0), speed(9.0, 1.0, samples=19)) == set()
    assert slow_ones(speed(0.002, 1000.0), speed(0.04, 1000.0)) == set(), "40 ms are nobody's trouble"
    brief = Speed()
    brief.streamed(10, 0.01)
    assert brief.rate is None


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12))
def test_the_fastest_half_is_never_slow(firsts: list[float]) -> None:
    found = slow_ones(*(speed(first_s, 1000.0) for first_s in firsts))
    ranked = sorted(range(len(firsts)), key=lambda n: firsts[n])
    assert not found & set(ranked[: (len(firsts) + 1) // 2])


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12))
def test_each_is_measured_against_the_median_of_all_others(values: list[float]) -> None:
    for key, value, middle in _beside_others(list(enumerate(values))):
        assert value == values[key]
        others = values[:key] + values[key + 1 :]
        assert middle == pytest.approx(statistics.median(others))


def test_slowness_ends_by_itself_and_lasts_longer_each_time() -> None:
    one = Standing(weight=3)
    lengths = []
    for _ in range(4):
        one.slow(100.0, RULES)
        lengths.append(one.slow_until - 100.0)
        assert one.share < one.weight
        one.not_slow()
        assert (one.share, one.slow_until) == (3, 0.0)
    assert lengths == [15, 30, 60, 60]


def test_a_decision_names_who_was_passed_over_and_why() -> None:
    best, out, trying, resting, slow, other, tried = (Spot(name) for name in "abcdefg")
    out.eject(10.0, RULES, Reason.UNREACHABLE)
    trying.eject(0.0, RULES, Reason.FAILING)
    trying.begin_trial(object(), 10.0, RULES)
    resting.rest(10.0, 5.0, told=True)
    slow.slow(10.0, RULES)
    best.load = 4
    match = Match(range(3), 0, PREFIX)
    match.depths = {"a": 2}
    told = decide(
        Field([best, out, trying, resting, slow, other, tried]),
        best,
        PREFIX,
        match,
        request_id="r",
        model="m",
        attempt=2,
        now=10.5,
        tried=[tried],
    )
    assert (
        told.header()
        == (
            f"replica=a; policy=prefix; attempt=2; known={CUTS[1]}/{CUTS[2]}; load=4; "
            "skipped=b:unreachable,c:on-trial,d:resting,e:slow,g:tried"
        ).encode()
    )
    assert told.at("f").header().startswith(b"replica=f; policy=room; attempt=2; skipped=")


def test_a_decision_stays_short_and_is_a_header_whatever_ids_hold() -> None:
    spots = [Spot(f"é\n{n}") for n in range(50)]
    told = decide(
        Field(spots), None, "nobody", None, request_id="r", model="m", attempt=1, now=1.0, tried=spots
    )
    line = told.header()
    assert b"+42" in line
    assert b"\n" not in line
    assert line.isascii()
