"""FakeClock: time passes only when told, and every sleeper wakes at its own moment."""

import asyncio

import pytest

from llmgw_kit.clock import Clock
from llmgw_kit.testing.clock import FakeClock


async def test_sleepers_wake_in_order_at_their_own_time() -> None:
    clock: Clock = FakeClock(monotonic_s=0.0)
    assert isinstance(clock, FakeClock)
    seen: list[tuple[str, float]] = []

    async def every(name: str, period_s: float) -> None:
        while True:
            await clock.sleep(period_s)
            seen.append((name, clock.monotonic_s()))

    tasks = [asyncio.create_task(every("three", 3)), asyncio.create_task(every("two", 2))]
    await clock.until_asleep(2)
    await clock.advance(6.5)
    assert seen == [("two", 2), ("three", 3), ("two", 4), ("three", 6), ("two", 6)]
    assert clock.monotonic_s() == 6.5
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert clock.sleepers == 0
    await clock.advance(10)


async def test_the_wall_may_jump_and_nothing_else_moves() -> None:
    clock = FakeClock(unix_s=100.0, monotonic_s=5.0)
    clock.jump_unix(-50)
    assert (clock.unix_s(), clock.monotonic_s()) == (50.0, 5.0)
    await clock.advance(2)
    assert (clock.unix_s(), clock.monotonic_s()) == (52.0, 7.0)
    with pytest.raises(ValueError, match="time does not go back"):
        await clock.advance(-1)


async def test_waiting_for_sleepers_that_never_come_is_an_error() -> None:
    with pytest.raises(AssertionError, match="0 tasks sleep on the clock, 1 were expected"):
        await FakeClock().until_asleep()
