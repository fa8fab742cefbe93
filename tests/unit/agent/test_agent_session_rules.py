"""Terms, rotation and back-off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.core.session import MOST_REDIRECTS, SHUN_S, DesiredGate, Rotation, TermGate, backoff_s


@given(st.lists(st.integers(0, 20)))
def test_the_gate_never_goes_back(terms: list[int]) -> None:
    gate, highest = TermGate(), -1
    for term in terms:
        assert gate.admits(term) == (term >= highest)
        if gate.admits(term):
            highest = term
        gate = gate.after(term)
        assert gate.highest == (None if highest < 0 else highest)


def test_lists_go_forward_and_may_repeat() -> None:
    assert DesiredGate().admits(0)
    assert DesiredGate(4).admits(4)
    assert not DesiredGate(4).admits(3)


def test_configured_addresses_are_called_in_turn_and_a_hint_first() -> None:
    rotation = Rotation(["a:1", "b:1", "a:1"])
    assert [rotation.take(now=0) for _ in range(3)] == ["a:1", "b:1", "a:1"]
    assert rotation.redirect("c:1", now=0)
    assert rotation.take(now=0) == "c:1"
    assert rotation.take(now=0) == "b:1"
    assert rotation.take(now=0) == "c:1", "what a standby named stays known"


def test_what_a_leader_named_is_added_and_replaces_what_one_named_before() -> None:
    rotation = Rotation(["a:1"])
    rotation.learn(["b:1", "a:1"])
    assert rotation.addresses == ("a:1", "b:1")
    rotation.learn(["c:1"])
    assert rotation.addresses == ("a:1", "c:1")


def test_two_standbys_that_name_each_other_do_not_spin() -> None:
    rotation = Rotation(["a:1", "b:1"])
    assert all(rotation.redirect("b:1", now=0) for _ in range(MOST_REDIRECTS))
    assert not rotation.redirect("a:1", now=0)
    rotation.welcomed()
    assert rotation.redirect("a:1", now=0)
    assert not rotation.redirect(None, now=0)


def test_a_dead_leader_is_not_followed_while_a_standby_goes_on_naming_it() -> None:
    rotation = Rotation(["a:1", "b:1"])
    rotation.failed("a:1", now=10)
    assert not rotation.redirect("a:1", now=10)
    assert [rotation.take(now=11) for _ in range(3)] == ["b:1", "b:1", "b:1"]
    # Not for ever: it may be back.
    assert rotation.take(now=10 + SHUN_S) == "a:1"
    rotation.failed("a:1", now=20)
    rotation.answered("a:1")
    assert rotation.redirect("a:1", now=20)


def test_where_all_are_silent_they_are_called_in_turn_all_the_same() -> None:
    rotation = Rotation(["a:1", "b:1"])
    rotation.failed("a:1", now=0)
    rotation.failed("b:1", now=0)
    assert [rotation.take(now=1) for _ in range(3)] == ["a:1", "b:1", "a:1"]


def test_nobody_is_called_twice_at_a_time() -> None:
    rotation = Rotation(["a:1", "b:1"])
    assert rotation.take(now=0, calling=["a:1"]) == "b:1"
    assert rotation.take(now=0, calling=["a:1", "b:1"]) is None
    rotation.redirect("a:1", now=0)
    assert rotation.take(now=0, calling=["a:1"]) == "b:1"


@pytest.mark.parametrize(("failures", "least", "most"), [(1, 0.1, 0.2), (3, 0.4, 0.8), (50, 0.5, 1.0)])
def test_backoff_grows_to_a_limit_and_half_of_it_is_drawn(failures: int, least: float, most: float) -> None:
    assert backoff_s(failures, 0.0) == pytest.approx(least)
    assert backoff_s(failures, 1.0) == pytest.approx(most)
