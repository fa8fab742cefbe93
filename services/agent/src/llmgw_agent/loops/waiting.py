"""Waiting with a clock that a test can hold."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from llmgw_kit.clock import Clock

T = TypeVar("T")


async def within(future: "asyncio.Future[Any]", clock: Clock, seconds: float) -> bool:
    """Whether `future` is done within so long; it is not cancelled."""
    timer = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        await asyncio.gather(timer, return_exceptions=True)
    return future.done()


async def limited(work: Coroutine[Any, Any, T], clock: Clock, seconds: float) -> T:
    """The result of `work`; raises TimeoutError, with the work cancelled, when it takes longer."""
    task = asyncio.create_task(work)
    try:
        if not await within(task, clock, seconds):
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Changes:
    """ "Something changed": many tell, many wait, none keeps a list."""

    def __init__(self) -> None:
        self._count = 0
        self._event = asyncio.Event()

    @property
    def count(self) -> int:
        """Grows with each change."""
        return self._count

    def notify(self) -> None:
        """Tell everybody who waits."""
        self._count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def after(self, seen: int) -> int:
        """Wait until the count is not `seen` any more; returns it."""
        while self._count == seen:
            await self._event.wait()
        return self._count
