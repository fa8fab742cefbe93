"""An event loop whose time is virtual: when nothing is ready it is at once as late as the next timer.

Threads do not exist here (what is sent to one runs in place) and sockets say nothing, so the order of events
is the order of timers, and a seed is a complete bug report for the real loops too.
"""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from tests.simulation.world import World

#: Rounding of timers: far below anything that waits here.
RESOLUTION_S = 1e-6


class _Jump(selectors.SelectSelector):
    """Waits in no time."""

    def __init__(self) -> None:
        super().__init__()
        self.advance: Callable[[float], None] = lambda _: None

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing is left to happen"
            if timeout > 0:
                self.advance(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        jump = _Jump()
        self._at = 0.0
        super().__init__(jump)
        self._clock_resolution = RESOLUTION_S
        jump.advance = self._advance

    def _advance(self, seconds: float) -> None:
        self._at += seconds

    def time(self) -> float:
        return self._at

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """In place: a thread would finish at a moment that no seed names."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as e:
            future.set_exception(e)
        return future


class LoopWorld(World):
    """The same world on such a loop. What breaks in an event or a task ends the run."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.loop = loop
        super().__init__(seed)
        self.broken: BaseException | None = None
        loop.set_exception_handler(self._report)

    @property
    def now(self) -> float:
        return self.loop.time()

    @now.setter
    def now(self, at: float) -> None:
        """Time goes by itself."""

    def at(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(max(0.0, delay_s), self._do, action, args)

    def _do(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.broken is not None:
            return
        try:
            action(*args)
        except Exception as e:
            self.breaks(e)

    def breaks(self, error: BaseException) -> None:
        """The first error counts; the run ends with it."""
        if self.broken is None:
            self.broken = error
            self.loop.call_soon(self.loop.stop)

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.breaks(error if error is not None else AssertionError(context["message"]))

    def run(self, until: float) -> None:
        if self.broken is None:
            self.loop.call_at(until, self.loop.stop)
            self.loop.run_forever()
        if self.broken is not None:
            raise self.broken


class GatedClock:
    """One process's clock; while `gate` holds the process, no wait of it ends."""

    def __init__(self, loop: VirtualLoop, gate: Callable[[], Any], offset_s: Callable[[], float]) -> None:
        self._loop = loop
        self._gate = gate
        self._offset_s = offset_s

    def unix_s(self) -> float:
        return self._loop.time() + self._offset_s()

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._gate()
