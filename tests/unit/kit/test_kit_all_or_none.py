"""Works that are of use together only."""

import asyncio

import pytest

from llmgw_kit.lifecycle import all_or_none


async def test_all_are_done_at_once() -> None:
    met = asyncio.Barrier(3)

    async def one() -> None:
        await met.wait()

    async with asyncio.timeout(10):
        await all_or_none(one() for _ in range(3))


async def test_the_first_failure_is_told_when_the_others_have_ended() -> None:
    ended: list[int] = []

    async def waits(n: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(n)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("this one")

    async with asyncio.timeout(10):
        with pytest.raises(ValueError, match="this one"):
            await all_or_none([waits(1), fails(), waits(2)])
    assert sorted(ended) == [1, 2]


async def test_who_is_cancelled_takes_all_along() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(all_or_none([waits()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
