"""Many who ask the same at once are answered by one look.

A look at the disk costs a change of threads, which is half of what a small answer costs. The look that
answers begins after each of them asked, so nobody is told what was true before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Together(Generic[K, V]):
    """`look` answers one key. What it raises, everybody who waits for it is told."""

    def __init__(self, look: Callable[[K], Awaitable[V]]) -> None:
        self._look = look
        #: Begins when the one before it has ended; who asks now is answered by it.
        self._next: dict[K, asyncio.Task[V]] = {}
        self._now: dict[K, asyncio.Task[V]] = {}

    async def ask(self, key: K) -> V:
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.ensure_future(self._begin(key))
        # One who leaves takes the answer from nobody else.
        return await asyncio.shield(task)

    async def _begin(self, key: K) -> V:
        before = self._now.get(key)
        if before is not None:
            await asyncio.wait({before})
        mine = self._now[key] = self._next.pop(key)
        try:
            return await self._look(key)
        finally:
            if self._now[key] is mine:
                del self._now[key]
