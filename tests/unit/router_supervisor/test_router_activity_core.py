"""Which ages a tick tells: newest touch wins, in use now is used now, and what was told is not repeated."""

import pytest

from llmgw_router.core.activity import Memory, Report, Use, observe, report, told

MS = 1_000_000
NOW = 10_000 * MS


def seen(memory: Memory, *uses: tuple[str, int, int | None], known: str = "") -> Memory:
    return observe(
        memory,
        [(replica, Use(in_flight, touched)) for replica, in_flight, touched in uses],
        known=frozenset(known.split()),
    )


CASES: dict[str, tuple[list[tuple[str, int, int | None]], dict[str, int], bool, dict[str, int]]] = {
    "never picked": ([("a", 0, None)], {}, False, {}),
    "never picked, whole map": ([("a", 0, None)], {}, True, {}),
    "touched": ([("a", 0, NOW - 1500 * MS)], {}, False, {"a": 1500}),
    "told before": ([("a", 0, NOW - 1500 * MS)], {"a": NOW - 1500 * MS}, False, {}),
    "told before, whole map": ([("a", 0, NOW - 1500 * MS)], {"a": NOW - 1500 * MS}, True, {"a": 1500}),
    "touched since it was told": ([("a", 0, NOW - 500 * MS)], {"a": NOW - 1500 * MS}, False, {"a": 500}),
    "in flight for an hour": ([("a", 1, NOW - 3_600_000 * MS)], {"a": NOW - 3_600_000 * MS}, False, {"a": 0}),
    "several endpoints of one replica": (
        [("a", 0, NOW - 9 * MS), ("a", 0, NOW - 3 * MS), ("a", 0, None)],
        {},
        False,
        {"a": 3},
    ),
    "rounded towards used": ([("a", 0, NOW - MS - 1)], {}, False, {"a": 1}),
    "a touch later than the reading of the clock": ([("a", 0, NOW + MS)], {}, False, {"a": 0}),
}


@pytest.mark.parametrize(("uses", "before", "whole", "ages"), CASES.values(), ids=CASES.keys())
def test_ages(
    uses: list[tuple[str, int, int | None]], before: dict[str, int], whole: bool, ages: dict[str, int]
) -> None:
    memory = seen(Memory(told_ns=before), *uses)
    assert dict(report(memory, now_ns=NOW, whole=whole).ages_ms) == ages


def tell(memory: Memory, now: int) -> tuple[Report, Memory]:
    sent = report(memory, now_ns=now, whole=False)
    return sent, told(memory, sent)


def test_a_stream_is_told_each_tick_and_once_more_when_it_ends() -> None:
    memory = seen(Memory(), ("a", 1, NOW))
    first, memory = tell(memory, NOW)
    memory = seen(memory, ("a", 1, NOW))
    second, memory = tell(memory, NOW + 5000 * MS)
    memory = seen(memory, ("a", 0, NOW + 6000 * MS))
    third, memory = tell(memory, NOW + 10_000 * MS)
    memory = seen(memory, ("a", 0, NOW + 6000 * MS))
    fourth, _ = tell(memory, NOW + 15_000 * MS)
    assert [dict(r.ages_ms) for r in (first, second, third, fourth)] == [{"a": 0}, {"a": 0}, {"a": 4000}, {}]


def test_what_did_not_arrive_is_told_again() -> None:
    memory = seen(Memory(), ("a", 0, NOW - MS))
    report(memory, now_ns=NOW, whole=False)  # lost: `told` is never called
    assert dict(report(memory, now_ns=NOW + MS, whole=False).ages_ms) == {"a": 2}


def test_every_known_replica_has_a_count_zeros_included() -> None:
    memory = seen(Memory(), ("b", 2, NOW), ("b", 1, NOW), ("gone", 1, NOW), known="a b")
    assert dict(report(memory, now_ns=NOW, whole=False).in_flight) == {"a": 0, "b": 3, "gone": 1}


def test_a_touch_outlives_the_endpoint_that_had_it_as_long_as_the_replica_is_known() -> None:
    memory = seen(Memory(), ("a", 0, NOW - 7 * MS), known="a")
    memory = seen(memory, ("a", 0, None), known="a")
    assert dict(report(memory, now_ns=NOW, whole=True).ages_ms) == {"a": 7}
    memory = seen(memory, known="")
    assert memory == Memory()
