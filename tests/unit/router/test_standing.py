"""Ejection: what counts, how long, who may try, and that nothing stays half-open (HO25)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.choosing.budget import RetryBudget
from llmgw_router.core.choosing.ejection import may_eject, too_many
from llmgw_router.core.choosing.standing import Reason, Standing
from llmgw_router.core.config import Choosing

RULES = Choosing()
BY = object()


def ejected(*, level: int = 1, now: float = 100.0, reason: Reason = Reason.FAILING) -> Standing:
    one = Standing()
    for _ in range(level):
        one.eject(now, RULES, reason)
    return one


def test_failures_in_a_row_eject_and_a_whole_answer_forgives() -> None:
    one = Standing()
    for _ in range(10):
        assert not one.failed(1.0, RULES, by=BY)
        assert not one.failed(1.0, RULES, by=BY)
        for _ in range(3):
            one.succeeded(1.0, RULES)
    assert not one.failed(2.0, RULES, by=BY)
    assert not one.failed(2.0, RULES, by=BY)
    assert one.failed(2.0, RULES, by=BY)


def test_a_refused_connection_says_it_all() -> None:
    assert Standing().failed(1.0, RULES, by=BY, decisive=True)


def test_an_endpoint_that_mostly_fails_is_ejected_though_never_in_a_row() -> None:
    one = Standing()
    verdicts = []
    for _ in range(RULES.eject_min_requests):
        one.succeeded(50.0, RULES)
        verdicts.append(one.failed(50.0, RULES, by=BY))
    assert True in verdicts
    # What lies two windows back is forgotten.
    one.passed(51.0, RULES)
    one.failures = 0
    later = 51.0 + 2 * RULES.window_s
    assert not one.failed(later, RULES, by=BY)


def test_the_cool_down_doubles_to_its_top_and_decays_with_good_behaviour() -> None:
    one = Standing()
    now, lengths = 0.0, []
    for _ in range(9):
        lengths.append(one.eject(now, RULES, Reason.FAILING))
        now = one.avoid_until
        one.begin_trial(BY, now, RULES)
        assert one.failed(now, RULES, by=BY)
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    one.passed(now, RULES)
    before = one.level
    # As long as it was put aside it has to behave, for each step down.
    one.succeeded(now + 1, RULES)
    assert one.level == before
    for _ in range(40):
        now += 61
        one.succeeded(now, RULES)
    assert one.level == 0


def test_a_burst_that_dies_together_is_one_ejection() -> None:
    one = Standing()
    verdicts = [one.failed(5.0, RULES, by=object()) for _ in range(3)]
    assert verdicts[-1]
    one.eject(5.0, RULES, Reason.FAILING)
    until = one.avoid_until
    assert not any(one.failed(5.0, RULES, by=object()) for _ in range(50))
    assert (one.level, one.avoid_until) == (1, until)


@pytest.mark.parametrize("ending", ["passes", "fails", "client leaves", "never returns"])
def test_ho25_every_end_of_a_trial_frees_the_place(ending: str) -> None:
    one = ejected()
    now = one.avoid_until
    one.begin_trial(BY, now, RULES)
    assert one.avoid_until > now, "nobody else meanwhile"
    second = object()
    one.begin_trial(second, now, RULES)
    assert one.trial is BY, "one at a time"
    match ending:
        case "passes":
            one.passed(now, RULES)
            assert (one.ejected, one.trial, one.avoid_until) == (False, None, 0.0)
        case "fails":
            assert one.failed(now, RULES, by=BY)
            one.eject(now, RULES, Reason.FAILING)
            assert (one.trial, one.avoid_until) == (None, now + 2)
        case "client leaves":
            one.gave_up(now)
            assert (one.ejected, one.trial, one.avoid_until) == (True, None, now)
        case _:
            later = now + RULES.trial_s
            assert one.avoid_until <= later
            one.begin_trial(second, later, RULES)
            assert one.trial is second


def test_where_nobody_else_is_left_a_failure_proves_nothing_new_and_an_answer_does() -> None:
    one = ejected()
    until = one.avoid_until
    for ending in ("fails", "client leaves"):
        one.begin_trial(BY, 100.5, RULES)
        assert one.trial is BY
        if ending == "fails":
            assert not one.failed(100.5, RULES, by=BY)
        else:
            one.gave_up(100.5)
        assert (one.trial, one.avoid_until, one.level) == (None, until, 1)
    one.begin_trial(BY, 100.6, RULES)
    one.begin_trial(object(), 100.6, RULES)
    assert one.trial is BY
    one.passed(100.7, RULES)
    assert (one.ejected, one.avoid_until) == (False, 0.0)


def test_on_probation_one_failure_is_enough() -> None:
    one = ejected()
    one.begin_trial(BY, 200.0, RULES)
    one.passed(200.0, RULES)
    assert one.failed(201.0, RULES, by=BY)
    one = ejected()
    one.passed(200.0, RULES)
    one.succeeded(200.0, RULES)
    assert not one.failed(201.0, RULES, by=BY)


def test_an_answer_begun_before_the_ejection_proves_nothing() -> None:
    one = ejected()
    until = one.avoid_until
    one.succeeded(100.0, RULES)
    assert (one.ejected, one.avoid_until) == (True, until)


def test_a_cool_down_is_the_longer_of_old_and_new() -> None:
    one = Standing()
    one.rest(0.0, 30.0, told=True)
    one.rest(1.0, 5.0, told=True)
    assert one.resting_until == one.avoid_until == 30.0
    one.eject(2.0, RULES, Reason.FAILING)
    assert one.avoid_until == 30.0
    one.passed(3.0, RULES)
    assert one.avoid_until == 30.0
    one.gave_up(3.0)
    assert one.avoid_until == 30.0


def test_a_health_check_brings_back_only_what_could_not_be_reached() -> None:
    for reason in Reason:
        one = ejected(reason=reason)
        back = one.looked_alive(100.5, RULES)
        assert back is (reason in (Reason.UNREACHABLE, Reason.UNHEALTHY))
        assert one.ejected is not back
    one = ejected()
    one.looked_dead(100.0, 6.0)
    assert one.avoid_until == 106.0
    fine = Standing()
    fine.looked_dead(100.0, 6.0)
    assert fine.avoid_until == 0.0


@given(total=st.integers(0, 50), share=st.floats(0, 1))
def test_the_cap_holds_always_allows_one_and_never_the_last(total: int, share: float) -> None:
    out = 0
    while may_eject(out, total, share):
        out += 1
    assert out <= max(1, int(share * total))
    assert out < total or total == 0
    if total >= 2:
        assert out >= 1


@given(total=st.integers(0, 50), share=st.floats(0, 1))
def test_who_is_not_there_at_all_is_put_aside_beyond_the_cap_but_never_the_last(
    total: int, share: float
) -> None:
    out = 0
    while may_eject(out, total, share, absent=True):
        out += 1
    assert out == max(0, total - 1)


def test_the_absent_stay_out_when_a_model_shrinks() -> None:
    spots = [ejected(now=float(n)) for n in range(4)]
    spots[0].reason = spots[1].reason = Reason.UNREACHABLE
    assert too_many(spots, 5, 0.5) == spots[2:]
    assert too_many(spots[:2], 3, 0.5) == []
    assert too_many(spots[:2], 2, 0.5) == spots[:1]


def test_when_a_model_shrinks_those_nearest_to_their_end_come_back() -> None:
    spots = [ejected(now=float(n)) for n in range(4)]
    assert too_many(spots, 8, 0.5) == []
    assert too_many(spots, 5, 0.5) == spots[:2]
    assert too_many(spots, 2, 0.5) == spots[:3]
    assert too_many(spots[:1], 1, 0.5) == spots[:1]


@given(
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50), st.integers(0, 30)), max_size=40),
    share=st.floats(0, 1),
    minimum=st.floats(0, 5),
)
def test_retries_never_exceed_their_budget(
    steps: list[tuple[float, int, int]], share: float, minimum: float
) -> None:
    budget = RetryBudget(share, minimum, 0.0)
    now, requests, retries = 0.0, 0, 0
    for elapsed_s, came, wanted in steps:
        now += elapsed_s
        requests += came
        retries += sum(budget.take(now, requests) for _ in range(wanted))
        most = minimum * (RetryBudget.DEPTH + now) + share * requests
        assert retries <= most + 1e-6


def test_a_quiet_router_may_retry_and_a_busy_one_by_its_share() -> None:
    budget = RetryBudget(0.2, 1.0, 0.0)
    assert sum(budget.take(0.0, 0) for _ in range(100)) == 10
    assert sum(budget.take(0.0, 1000) for _ in range(1000)) == 200
    assert sum(budget.take(100.0, 1000) for _ in range(1000)) == 100
    assert sum(budget.take(1e6, 1000) for _ in range(1000)) == 210
