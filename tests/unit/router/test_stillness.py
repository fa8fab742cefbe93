"""A worker that hangs, told from one that is busy, and never by the supervisor's own sleep."""

from llmgw_router.supervisor.watching import Look, Stillness


def test_only_looks_without_a_sweep_in_a_row_count_and_each_life_is_told_once() -> None:
    stillness = Stillness(most=3)
    moving = [[Look(0, 10, at), Look(1, 11, 5)] for at in range(6)]
    told = [stillness.look(looks) for looks in moving]
    assert told == [[], [], [], [Look(1, 11, 5)], [], []]


def test_a_sweep_between_looks_begins_the_count_anew() -> None:
    stillness = Stillness(most=2)
    for at in (1, 1, 2, 2, 3, 3):
        assert stillness.look([Look(0, 10, at)]) == []


def test_one_late_look_of_a_supervisor_that_slept_kills_nobody() -> None:
    # Both were frozen for an hour: the first look after it finds the old time, the next a new one.
    stillness = Stillness(most=10)
    assert stillness.look([Look(0, 10, 1)]) == []
    assert stillness.look([Look(0, 10, 1)]) == []
    assert stillness.look([Look(0, 10, 3_600_000_000_000)]) == []


def test_a_successor_in_the_seat_is_another_life() -> None:
    stillness = Stillness(most=2)
    for pid in (10, 10, 11, 11):
        assert stillness.look([Look(0, pid, 0)]) == []
    assert stillness.look([Look(0, 11, 0)]) == [Look(0, 11, 0)]
    # A worker that is starting is not looked at, and is forgotten.
    assert stillness.look([]) == []
    assert stillness.look([Look(0, 11, 0)]) == []
