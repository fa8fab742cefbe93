"""Recorded statuses and the log's cursor: the same answers from both stores."""

from typing import TYPE_CHECKING

import pytest

from llmgw_controller.adapters.history_memory import MemoryHistory
from llmgw_controller.adapters.history_postgres import PostgresHistory
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.ports import Fenced, StatusRecord
from llmgw_kit.ids import LeaseTerm

if TYPE_CHECKING:
    from tests.contract.controller.conftest import World

#: The start of a minute.
T = 3_999_999_960.0


async def term(world: "World") -> LeaseTerm:
    lease = await world.lease.acquire(holder="a", address="a:1", ttl_s=60)
    assert lease is not None
    return lease.term


async def test_the_newest_that_is_not_younger_answers(world: "World"):
    held, history = await term(world), world.store.history
    assert await history.newest(T) is None
    assert await history.span() is None
    for second in (0, 10, 20):
        await history.record(held, T + second, f"s{second}".encode())
    assert await history.newest(T - 1) is None, "older than all that is known"
    assert await history.newest(T) == StatusRecord(T, held, b"s0")
    assert await history.newest(T + 19.9) == StatusRecord(T + 10, held, b"s10")
    assert await history.newest(T + 9999) == StatusRecord(T + 20, held, b"s20")
    assert await history.span() == (T, T + 20)


async def test_a_newer_word_of_an_earlier_moment_replaces_what_stood_later(world: "World"):
    """A new leader's clock may be some milliseconds behind the last one's."""
    held, history = await term(world), world.store.history
    await history.record(held, T + 10, b"before")
    await history.record(held, T + 9, b"after")
    assert await history.newest(T + 99) == StatusRecord(T + 9, held, b"after")
    assert await history.span() == (T + 9, T + 9)


async def test_who_lost_the_lease_records_and_thins_nothing(world: "World"):
    held, history = await term(world), world.store.history
    await history.record(held, T, b"mine")
    await world.let_the_lease_run_out()
    with pytest.raises(Fenced):
        await history.record(held, T + 10, b"late")
    with pytest.raises(Fenced):
        await history.thin(held, before=T + 99, minutes_before=T + 99)
    assert await history.newest(T + 99) == StatusRecord(T, held, b"mine")


async def test_old_ones_are_thinned_to_one_a_minute_and_very_old_ones_go(world: "World"):
    held, history = await term(world), world.store.history
    for second in range(0, 240, 20):
        await history.record(held, T + second, str(second).encode())
    gone = await history.thin(held, before=T + 60, minutes_before=T + 180)
    left = [float((await history.newest(T + second)).status) for second in (119, 179, 180, 200, 220)]  # type: ignore[union-attr]
    assert left == [100, 160, 180, 200, 220]
    assert gone == 3 + 2 + 2
    assert await history.span() == (T + 100, T + 220)
    assert await history.thin(held, before=T + 60, minutes_before=T + 180) == 0


async def test_too_many_bytes_push_out_the_oldest(world: "World"):
    held, history = await term(world), world.store.history
    assert isinstance(history, MemoryHistory | PostgresHistory)
    history._bytes_most = 2500
    for number in range(5):
        # Random enough that nobody compresses it away.
        await history.record(held, T + number, bytes((number * 37 + i * i * 7) % 251 for i in range(1000)))
    await history.thin(held, before=T - 1, minutes_before=T - 1)
    span = await history.span()
    assert span == (T + 3, T + 4)


async def test_the_log_of_a_span_is_told_whatever_came_after_it(world: "World"):
    """Newest first up to `until`: a thousand later events push none of it out."""
    held = await term(world)
    later = [PutEvent(T + 100, "k", "n1", "later", Severity.INFO) for _ in range(1200)]
    early = [PutEvent(T + number, "k", "n1", f"text {number}", Severity.INFO) for number in range(5)]
    await world.store.commit(held, [*early, *later])
    found = await world.store.events(since=T + 1, until=T + 3, subject=None, limit=1000)
    assert [row.text for row in found] == ["text 3", "text 2", "text 1"]
    last = await world.store.events(since=None, until=T + 3.5, subject="n1", limit=2)
    assert [row.text for row in last] == ["text 3", "text 2"]


async def test_the_first_event_since_a_time_is_found_however_many_followed(world: "World"):
    held = await term(world)
    assert await world.store.first_event(T) is None
    events = [PutEvent(T + number, "k", "n1", f"text {number}", Severity.INFO) for number in range(1100)]
    await world.store.commit(held, events)
    every = await world.store.events_after(0, subject=None, limit=3)
    assert await world.store.first_event(T - 10) == every[0].event_id
    assert await world.store.first_event(T + 1.5) == every[2].event_id
    assert await world.store.first_event(T + 1099.5) is None


async def test_the_log_goes_on_after_a_cursor(world: "World"):
    held = await term(world)
    for number in range(5):
        subject = "n1" if number % 2 else "n2"
        await world.store.commit(held, [PutEvent(T + number, "k", subject, f"text {number}", Severity.INFO)])
    every = await world.store.events_after(0, subject=None, limit=10)
    assert [row.text for row in every] == [f"text {number}" for number in range(5)]
    after = await world.store.events_after(every[1].event_id, subject=None, limit=2)
    assert [row.text for row in after] == ["text 2", "text 3"]
    mine = await world.store.events_after(every[1].event_id, subject="n1", limit=10)
    assert [row.text for row in mine] == ["text 3"]
    assert await world.store.events_after(every[-1].event_id, subject=None, limit=10) == []
