"""Limits counted by several workers in shared memory: exact, fair, and nothing left by the dead."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.core.admission import rank
from llmgw_router.relay.gates import Gate
from llmgw_router.relay.slots import GATES, Slots
from llmgw_router.supervisor.gate_book import GateBook

NUMBER = 7


@pytest.fixture
def slots() -> Iterator[Slots]:
    made = Slots.create(workers=3, capacity=4)
    yield made
    # Views are everywhere; the memory goes with the process, as it does in a worker.


def enter(gate: Gate, change: int = 1) -> None:
    gate.running += change
    gate.publish()


def gates(slots: Slots, *, limit: int | None, number: int | None = NUMBER) -> list[Gate]:
    return [Gate(slots, worker, limit=limit, number=number) for worker in range(slots.workers)]


def test_what_one_worker_lets_in_the_others_count(slots: Slots) -> None:
    a, b, c = gates(slots, limit=3)
    enter(a)
    enter(a)
    assert not b.full()
    enter(c)
    assert a.full() and b.full() and c.full()
    enter(a, -1)
    assert not b.full()


def test_waiting_is_counted_together_and_bounded_together(slots: Slots) -> None:
    a, b, _ = gates(slots, limit=1)
    a.wait(1)
    b.wait(1)
    assert a.crowded(2) and b.crowded(2)
    assert not a.crowded(3)
    b.wait(-1)
    assert not a.crowded(2)


def test_the_longest_waiting_goes_first_in_whichever_worker(slots: Slots) -> None:
    a, b, c = gates(slots, limit=1)
    a.next_is(rank(0, 2000))
    b.next_is(rank(0, 1000))
    assert a.others_wait() and b.others_wait() and c.others_wait()
    assert a.after_others(a.head)
    assert not b.after_others(b.head)
    # The more important goes before the earlier.
    assert not c.after_others(rank(5, 9000))
    b.next_is(0)
    assert not a.after_others(a.head)
    assert not a.others_wait()


def test_without_a_number_a_worker_keeps_to_its_share(slots: Slots) -> None:
    a, b, _ = gates(slots, limit=5, number=None)
    enter(a)
    assert not a.full()
    enter(a)
    assert a.full() and not b.full()
    # What it has counted until then is seen by the others from the moment it has one.
    a.joined(NUMBER)
    b.joined(NUMBER)
    assert not a.full()
    for _ in range(3):
        enter(b)
    assert a.full() and b.full()


def test_a_dead_worker_neither_counts_nor_waits(slots: Slots) -> None:
    a, b, _ = gates(slots, limit=1)
    enter(a)
    a.wait(1)
    a.next_is(rank(0, 1))
    assert b.full() and b.others_wait()
    slots.bury(0, died_at_ns=1)
    assert not b.full() and not b.others_wait() and not b.crowded(1)


def test_gates_and_columns_do_not_overlap(slots: Slots) -> None:
    for worker in range(slots.workers):
        slots.gates_of(worker)[:] = memoryview(bytes([255]) * 24 * GATES).cast("q")
    assert all(slots.activity(slot).in_flight == 0 for slot in range(4))
    assert not any(slots.totals().values())


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60), st.integers(1, 5))
def test_no_more_than_the_limit_is_ever_let_in(steps: list[tuple[int, bool]], limit: int) -> None:
    slots = Slots.create(workers=3, capacity=1)
    workers = gates(slots, limit=limit)
    running = [0, 0, 0]
    for worker, comes in steps:
        if comes and not workers[worker].full():
            enter(workers[worker])
            running[worker] += 1
        elif not comes and running[worker]:
            enter(workers[worker], -1)
            running[worker] -= 1
        assert sum(running) <= limit
        assert all(gate.full() == (sum(running) >= limit) for gate in workers)


MODELS = [f"m{index}" for index in range(GATES - 1)]


def test_a_model_keeps_its_number_and_the_router_its_own() -> None:
    book = GateBook()
    assert book.give(MODELS) == {name: number for number, name in enumerate(MODELS, start=1)}
    assert book.give(["m5"]) == {"m5": 6}
    assert GATES >= 4096


def test_a_full_book_says_so_once_and_gives_again_what_nobody_uses(caplog: pytest.LogCaptureFixture) -> None:
    book = GateBook()
    book.give(MODELS)
    assert book.give(["x", "y"]) == {}
    assert book.give(["x"]) == {}
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "4095 models" in caplog.text
    known = {*MODELS, "x", "y"} - {"m1", "m2"}
    # Something runs at m1 still.
    assert book.release(known, lambda number: number != 2) == ("m2",)
    assert book.give(book.short) == {"x": 3}
    assert (book.numbers["x"], "m2" in book.numbers, list(book.short)) == (3, False, ["y"])
    assert book.release(known - {"y"}, lambda _: True) == ("m1",)
    assert not book.short, "what is gone waits for no number"


def test_a_gate_that_has_lost_its_number_counts_alone_and_leaves_nothing_there(slots: Slots) -> None:
    first, second, _ = gates(slots, limit=2)
    enter(first)
    first.wait(1)
    first.next_is(9)
    assert second.others_wait()
    first.left()
    assert not first.numbered
    assert not second.others_wait()
    enter(second, 1)
    assert not second.full()
    first.joined(7)
    assert first.running == 1
    assert slots.gate_idle(7) is False
    assert slots.gate_idle(8) is True
