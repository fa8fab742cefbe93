"""Looks that are shared: never one that began before somebody asked."""

import asyncio

import pytest

from llmgw_mirror.adapters.together import Together


class Disk:
    """Answers when it is told to; counts the looks, and tells each what was there when it began."""

    def __init__(self) -> None:
        self.content = 0
        self.looks = 0
        self.go = asyncio.Semaphore(0)

    async def look(self, key: str) -> int:
        self.looks += 1
        seen = self.content
        await self.go.acquire()
        if seen < 0:
            raise OSError(f"{key} is gone")
        return seen


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_hundred_at_once_cost_one_look() -> None:
    disk = Disk()
    together = Together(disk.look)
    asking = [asyncio.create_task(together.ask("a")) for _ in range(100)]
    await turn()
    disk.go.release()
    assert await asyncio.gather(*asking) == [0] * 100
    assert disk.looks == 1


async def test_who_asks_after_a_look_began_is_answered_by_the_next() -> None:
    disk = Disk()
    together = Together(disk.look)
    early = asyncio.create_task(together.ask("a"))
    await turn()
    disk.content = 1
    late = [asyncio.create_task(together.ask("a")) for _ in range(10)]
    await turn()
    disk.go.release()
    disk.go.release()
    assert await early == 0
    assert await asyncio.gather(*late) == [1] * 10
    assert disk.looks == 2


async def test_keys_do_not_wait_for_each_other() -> None:
    disk = Disk()
    together = Together(disk.look)
    asking = [asyncio.create_task(together.ask(key)) for key in "ab"]
    await turn()
    assert disk.looks == 2
    disk.go.release()
    disk.go.release()
    await asyncio.gather(*asking)


async def test_a_failure_is_told_to_all_and_not_remembered() -> None:
    disk = Disk()
    disk.content = -1
    together = Together(disk.look)
    asking = [asyncio.create_task(together.ask("a")) for _ in range(3)]
    await turn()
    disk.go.release()
    for one in asking:
        with pytest.raises(OSError, match="a is gone"):
            await one
    disk.content = 2
    disk.go.release()
    assert await together.ask("a") == 2


async def test_one_who_leaves_takes_the_answer_from_nobody_else() -> None:
    disk = Disk()
    together = Together(disk.look)
    leaving, staying = (asyncio.create_task(together.ask("a")) for _ in range(2))
    await turn()
    leaving.cancel()
    await turn()
    disk.go.release()
    assert await staying == 0
    assert disk.looks == 1
