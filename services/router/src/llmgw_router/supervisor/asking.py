"""Questions to all workers at once, and their answers within a bound."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llmgw_router.relay import ipc


@dataclass(frozen=True, slots=True)
class RunningNow:
    """What the workers said that runs, and which of them said nothing in time."""

    rows: tuple[tuple[int, ipc.RunningRow], ...]
    left_out: int
    silent: tuple[int, ...]


class Asking:
    """Open questions by number; an answer that comes too late finds nobody and is dropped."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, dict[int, asyncio.Future[ipc.Running]]] = {}

    async def running(
        self, workers: Iterable[tuple[int, Callable[[ipc.Down], None]]], *, timeout_s: float
    ) -> RunningNow:
        """Ask each of `workers` (number and sender)."""
        self._last += 1
        ask = self._last
        loop = asyncio.get_running_loop()
        waiting: dict[int, asyncio.Future[ipc.Running]] = {}
        self._open[ask] = waiting
        try:
            for worker, send in workers:
                waiting[worker] = loop.create_future()
                send(ipc.AskRunning(ask=ask))
            if waiting:
                await asyncio.wait(waiting.values(), timeout=timeout_s)
        finally:
            del self._open[ask]
        answers = {worker: future.result() for worker, future in waiting.items() if future.done()}
        return RunningNow(
            tuple((worker, row) for worker, answer in sorted(answers.items()) for row in answer.rows),
            sum(answer.left_out for answer in answers.values()),
            tuple(sorted(waiting.keys() - answers.keys())),
        )

    def heard(self, answer: ipc.Running) -> None:
        future = self._open.get(answer.ask, {}).get(answer.worker)
        if future is not None and not future.done():
            future.set_result(answer)
