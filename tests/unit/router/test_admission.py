"""The order in which waiting requests are let in, and what is said of how long it will take."""

from hypothesis import example, given
from hypothesis import strategies as st

from llmgw_router.core.admission import AGED_SHARE, Line, Pace, Ticket, rank, share, wait_s

BOUND_S = 10.0


def line(*tickets: tuple[float, int]) -> Line[str]:
    made: Line[str] = Line(age_bound_s=BOUND_S)
    for index, (at, priority) in enumerate(tickets):
        made.push(f"{index}", Ticket(at, priority))
    return made


def emptied(waiting: Line[str], now: float) -> str:
    return "".join(iter(lambda: waiting.pop(now) or "", ""))


def test_the_more_important_first_then_in_order_of_arrival() -> None:
    assert emptied(line((0, 0), (1, 5), (2, 0), (3, 5), (4, -1)), now=5) == "13024"


def test_who_has_waited_past_the_bound_gets_its_share_and_no_more() -> None:
    tickets = [(0.0, -10), (1.0, -10), (2.0, -10), *((15.0, 0) for _ in range(7))]
    # 0, 1 and 2 are patient and past the bound; one in four of those let in is theirs.
    assert emptied(line(*tickets), now=15) == "3450678192"
    assert AGED_SHARE == 4


def test_the_newest_of_the_least_important_makes_room() -> None:
    assert line((0, 0), (1, -5), (2, -5), (3, 7)).last() == "2"
    assert line().last() is None


def test_a_place_is_given_up_at_once() -> None:
    waiting = line((0, 0), (1, 0), (2, 3))
    assert waiting.remove("0")
    assert not waiting.remove("0")
    assert waiting.ticket_of("0") is None
    assert (len(waiting), sorted(waiting)) == (2, ["1", "2"])
    assert waiting.ahead(Ticket(9, 0)) == 2
    assert waiting.ahead(Ticket(9, 1)) == 1
    assert emptied(waiting, now=3) == "21"
    assert waiting.first(3) is None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(-2, 2)),
            st.tuples(st.just("pop"), st.just(0)),
            st.tuples(st.just("leave"), st.integers(0, 50)),
            st.tuples(st.just("pass"), st.integers(1, 8)),
        ),
        max_size=80,
    )
)
def test_whatever_happens_nobody_is_lost_and_nobody_starves(steps: list[tuple[str, int]]) -> None:
    waiting: Line[int] = Line(age_bound_s=BOUND_S)
    now, born, gone = 0.0, 0, set[int]()
    tickets: dict[int, Ticket] = {}
    passed_over: dict[int, int] = {}
    for what, how in steps:
        match what:
            case "push":
                tickets[born] = Ticket(now, how)
                waiting.push(born, tickets[born])
                born += 1
            case "pop":
                oldest = min(
                    (one for one in waiting if now - tickets[one].at >= BOUND_S),
                    key=lambda one: (tickets[one].at, one),
                    default=None,
                )
                said = waiting.first(now)
                one = waiting.pop(now)
                assert one == said
                if one is not None:
                    assert one not in gone
                    gone.add(one)
                    # Within its priority nobody older was left behind.
                    assert all(
                        tickets[other].at >= tickets[one].at
                        for other in waiting
                        if tickets[other].priority == tickets[one].priority
                    )
                if oldest is not None and one != oldest:
                    passed_over[oldest] = passed_over.get(oldest, 0) + 1
                    assert passed_over[oldest] < AGED_SHARE + len(tickets)
            case "leave":
                assert waiting.remove(how) == (how in tickets and how not in gone)
                gone.add(how) if how in tickets else None
            case "pass":
                now += how
        assert len(waiting) == len(list(waiting)) == born - len(gone)


@given(st.integers(1, 200), st.integers(1, 50))
def test_patient_work_is_served_under_any_load_of_the_impatient(backlog: int, pairs: int) -> None:
    """Two important ones come for each that is let in: without the bound the patient one never goes."""
    waiting: Line[object] = Line(age_bound_s=BOUND_S)
    patient = "patient"
    waiting.push(patient, Ticket(0.0, -10))
    for index in range(backlog):
        waiting.push(index, Ticket(BOUND_S, 0))
    for turn in range(AGED_SHARE):
        if waiting.pop(BOUND_S + turn) == patient:
            return
        for extra in range(pairs):
            waiting.push((turn, extra), Ticket(BOUND_S + turn, 0))
    raise AssertionError("it was passed over")


def test_the_pace_is_what_was_done_of_late() -> None:
    pace = Pace(window_s=10)
    assert pace.per_s(0) is None
    for tenth in range(1, 51):
        pace.note(tenth / 10)
    assert pace.per_s(5.0) is not None
    assert abs((pace.per_s(5.0) or 0) - 10) < 0.1
    # It ended; what is said follows within two windows, and then nothing is known.
    assert (pace.per_s(15.0) or 0) < 6
    assert pace.per_s(40.0) is None


# Eleven in 32 s: one more or less in the window is more than a fifth of them.
@example(0.34375, 32.0)
@given(st.floats(0.2, 200), st.floats(1, 100))
def test_a_steady_pace_is_told_to_a_fifth(rate: float, lasts_s: float) -> None:
    pace = Pace(window_s=10)
    count = int(rate * lasts_s)
    for index in range(count):
        pace.note(index / rate)
    told = pace.per_s(max(0, count - 1) / rate)
    if count > 10:
        assert told is not None
        # And one of those in its window more or less.
        assert abs(told - rate) <= rate / 5 + 1 / 10


def test_a_wait_is_those_ahead_by_the_pace() -> None:
    assert wait_s(9, 2.0) == 5.0
    assert wait_s(9, None) is None
    assert [share(limit, 4) for limit in (1, 4, 5, 8)] == [1, 1, 2, 2]


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(0, 2**40), st.integers(0, 2**40))
def test_ranks_order_by_priority_then_time_and_fit_a_cell(p: int, q: int, s: int, t: int) -> None:
    one, other = rank(p, s), rank(q, t)
    assert (one < other) == ((-p, s) < (-q, t))
    assert 0 < one < 2**63
