"""Which piece is asked of whom, and how sources stand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.core.pieces import (
    MOST_ASKERS,
    OF_MIRROR,
    OF_MIRROR_ALONE,
    PER_PEER,
    Ask,
    Asked,
    Snapshot,
    Source,
    counted,
    plan_next,
    rarest,
)
from llmgw_agent.core.sources import (
    SLOW_FOR_S,
    Standing,
    failed,
    gave,
    late_s,
    lied,
    slow_ones,
    usable,
    was_busy,
)

MIRROR = Source("mirror", 0b11111111)


def plan(missing: int, *peers: Source, mirror: Source | None = MIRROR, **more: object) -> tuple[Ask, ...]:
    given = {"asked": (), "room": 8, "late_s": None, **more}
    snapshot = Snapshot(missing, mirror=mirror, peers=peers, **given)  # type: ignore[arg-type]
    return plan_next(snapshot, 100.0, random.Random(1).random)


def of(asks: tuple[Ask, ...], source: str) -> list[int]:
    return [ask.pieces for ask in asks if ask.source == source]


def test_what_no_peer_has_is_asked_of_the_mirror_and_the_rest_of_peers() -> None:
    asks = plan(0b1111, Source("a", 0b0011))
    assert of(asks, "mirror") == [0b1100]
    assert sorted(of(asks, "a")) == [0b0001, 0b0010]


def test_the_rarest_piece_of_a_peer_comes_first() -> None:
    asks = plan(0b111, Source("a", 0b111), Source("b", 0b011, usable=False), Source("c", 0b001, usable=False),
                mirror=None, room=1)  # fmt: skip
    assert asks == (Ask("a", 0b100),)


def test_alone_with_the_mirror_a_few_are_asked_at_once() -> None:
    assert of(plan(0b11111111), "mirror") == [0b11111111] * OF_MIRROR_ALONE
    assert len(of(plan(0b11111111, Source("a", 0)), "mirror")) == OF_MIRROR


def test_nobody_is_asked_for_what_was_asked_for_until_it_is_late() -> None:
    asked = (Asked("a", 0, since=98.0),)
    peers = (Source("a", 0b01), Source("b", 0b11))
    # Piece 2 is had by nobody: this is not the end yet.
    assert sorted(of(plan(0b111, *peers, asked=asked, mirror=None, late_s=5.0), "b")) == [0b10]
    assert 0b01 in of(plan(0b101, *peers, asked=asked, mirror=None, late_s=1.0), "b")


def test_at_the_end_what_is_missing_is_asked_of_one_more() -> None:
    asked = (Asked("a", 0, since=99.9),)
    asks = plan(0b1, Source("a", 0b1), Source("b", 0b1), Source("c", 0b1), asked=asked, mirror=None)
    assert len(asks) == MOST_ASKERS - 1
    assert asks[0].source in "bc"


def test_the_mirror_is_not_asked_for_more_than_is_missing() -> None:
    asked = (Asked("mirror", None, 99.0),)
    assert plan(0b1, mirror=Source("mirror", 0b1), asked=asked) == ()


sources = st.builds(Source, st.sampled_from("abcdef"), st.integers(0, 255), st.booleans())


@given(
    missing=st.integers(0, 255), peers=st.lists(sources, unique_by=lambda one: one.name, max_size=6),
    room=st.integers(0, 12), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_plan_keeps_the_bounds(missing: int, peers: list[Source], room: int, seed: int) -> None:
    snapshot = Snapshot(missing, (), MIRROR, tuple(peers), room)
    asks = plan_next(snapshot, 0.0, random.Random(seed).random)
    assert len(asks) <= room
    by_name = {peer.name: peer for peer in peers}
    assert all(len(of(asks, name)) <= PER_PEER for name in by_name)
    assert len(of(asks, "mirror")) <= OF_MIRROR_ALONE
    for ask in asks:
        assert ask.pieces, "nothing is asked for"
        assert ask.pieces & ~missing == 0
        if ask.source in by_name:
            peer = by_name[ask.source]
            assert peer.usable
            assert ask.pieces & peer.have
            assert ask.pieces.bit_count() == 1
    if missing and room:
        assert asks, "the mirror has everything, so there is always somebody to ask"


@given(haves=st.lists(st.integers(0, 2**20 - 1), max_size=40), pieces=st.integers(1, 2**20 - 1))
def test_rarest_is_what_counting_one_by_one_finds(haves: list[int], pieces: int) -> None:
    counts = {n: sum(have >> n & 1 for have in haves) for n in range(20) if pieces >> n & 1}
    least = min(counts.values())
    assert rarest(pieces, counted(haves)) == sum(1 << n for n, count in counts.items() if count == least)


def test_a_liar_is_banned_and_the_mirror_rests() -> None:
    assert not usable(lied(Standing(), 0.0, "piece 3 was wrong"), 1e9)
    mirror = lied(Standing(mirror=True), 0.0, "piece 3 was wrong")
    assert mirror.banned is None
    assert not usable(mirror, 0.1)
    assert usable(mirror, 60.0)


def test_failures_rest_longer_each_time_and_a_piece_ends_that() -> None:
    standing, rests = Standing(), []
    for _ in range(9):
        standing = failed(standing, 0.0)
        rests.append(standing.rests_until)
    assert rests[:3] == [0.5, 1.0, 2.0]
    assert rests[-1] == 30.0
    assert usable(gave(standing, 0.0, 10, sending_s=1.0, took_s=1.0), 0.0)


@pytest.mark.parametrize(("told", "least", "most"), [(None, 0.05, 0.15), (2.0, 1.0, 3.0)])
def test_a_busy_source_is_asked_again_soon(told: float | None, least: float, most: float) -> None:
    for chance in (0.0, 0.99):
        assert least <= was_busy(Standing(), 0.0, told, chance).rests_until <= most


def test_slow_is_measured_against_the_rest_and_forgotten_after_a_while() -> None:
    standings = {
        name: gave(Standing(), 0.0, 100, sending_s=took_s, took_s=took_s)
        for name, took_s in {"a": 1.0, "b": 1.1, "c": 0.9, "slow": 20.0}.items()
    }
    assert slow_ones(standings, 1.0) == {"slow"}
    assert slow_ones(standings, SLOW_FOR_S + 1.0) == frozenset()
    assert slow_ones({"a": standings["a"], "slow": standings["slow"]}, 1.0) == frozenset(), (
        "two are no median"
    )


def test_late_is_what_takes_several_times_the_usual() -> None:
    assert late_s({"a": Standing()}) is None
    assert late_s({"a": gave(Standing(), 0.0, 1, sending_s=1.0, took_s=2.0)}) == 8.0
    assert late_s({"a": gave(Standing(), 0.0, 1, sending_s=0.01, took_s=0.01)}) == 1.0
