"""Calling controllers until one welcomes us: the next one is tried beside a call that hangs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from llmgw_agent.core.session import Rotation, backoff_s
from llmgw_agent.loops.session import Session, SessionOver
from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError, NotLeader

log = logging.getLogger(__name__)

#: A frozen process takes a connection and answers nothing. Another is asked beside it after so long; its
#: welcome, if it still comes first, is as good.
PATIENCE_S = 1.0
#: Beside one that was silent before.
SHORT_PATIENCE_S = 0.2
#: Of a fleet that loses its leader at one moment, the first calls come within so long, not all at once.
SPREAD_S = 1.0
#: As if so many calls had failed: the whole fleet asks just now, and quick repeats help nobody.
FAILURES_AFTER_SESSION = 2
#: A failover is about so many; from then on one failure in a while is told.
QUIET_FAILURES = 16
TOLD_EVERY = 40
#: At most so many calls hang at a time.
MOST_CALLS = 3
#: Another agent speaks for this node. Coming back at once would only throw that one out in turn.
FENCED_WAIT_S = 30.0


class Caller:
    """`call` makes one call: a session, or LlmgwError or SessionOver."""

    def __init__(
        self, call: Callable[[str], Awaitable[Session]], rotation: Rotation, clock: Clock,
        chance: Callable[[], float],
    ) -> None:  # fmt: skip
        self._call, self._rotation, self._clock, self._chance = call, rotation, clock, chance
        self._failures = 0

    def welcomed(self) -> None:
        """The next pauses are short again."""
        self._failures = 0
        self._rotation.welcomed()

    def spread_s(self) -> float:
        """Seconds to wait before the first call after a session: drawn anew each time."""
        self._failures = FAILURES_AFTER_SESSION
        return SPREAD_S * self._chance()

    async def until_welcomed(self, *, pause_s: float = 0.0) -> Session:
        """The first session that stands; whoever else was called is left. The first call comes after
        `pause_s`."""
        calls: dict[asyncio.Task[Session], str] = {}
        next_at = self._clock.monotonic_s() + pause_s
        try:
            while True:
                now = self._clock.monotonic_s()
                if now >= next_at:
                    next_at = now + self._begin(calls, now)
                for call in await self._over(calls, next_at - now):
                    address = calls.pop(call)
                    try:
                        return call.result()
                    except (SessionOver, LlmgwError) as e:
                        next_at = self._clock.monotonic_s() + self._after_call(address, e)
        finally:
            await _leave(calls)

    def _begin(self, calls: dict["asyncio.Task[Session]", str], now: float) -> float:
        """Call the next, if there is one; seconds after which another may be called beside it."""
        address = None
        if len(calls) < MOST_CALLS:
            address = self._rotation.take(now=now, calling=calls.values())
        if address is None:
            return PATIENCE_S
        calls[asyncio.ensure_future(self._call(address))] = address
        return SHORT_PATIENCE_S if self._rotation.was_silent(address) else PATIENCE_S

    async def _over(
        self, calls: dict["asyncio.Task[Session]", str], most_s: float
    ) -> "set[asyncio.Task[Session]]":
        """Those that have ended, after so long at most."""
        timer = asyncio.create_task(self._clock.sleep(max(0.0, most_s)))
        try:
            done, _ = await asyncio.wait({*calls, timer}, return_when=asyncio.FIRST_COMPLETED)
            return {call for call in calls if call in done}
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    def after_session(self, address: str, over: SessionOver) -> float:
        """Seconds to wait after a session with `address` ended."""
        log.warning("session over: %s", over)
        if over.code == "fenced":
            return _fenced()
        if over.leader is None:
            # Whoever is asked next may go on naming it for as long as its lease lasts.
            self._rotation.failed(address, now=self._clock.monotonic_s())
        else:
            self._rotation.redirect(over.leader, now=self._clock.monotonic_s())
        return self.spread_s()

    def _after_call(self, address: str, error: SessionOver | LlmgwError) -> float:
        """Seconds to wait after a call of `address` failed; 0 where somebody named whom to call."""
        now = self._clock.monotonic_s()
        over = error if isinstance(error, SessionOver) else None
        if isinstance(error, NotLeader) or (over is not None and over.code != "silent"):
            self._rotation.answered(address)
        else:
            expected = self._rotation.was_silent(address)
            self._rotation.failed(address, now=now)
            if expected and self._rotation.has_better(now=now):
                return 0.0  # Whoever may answer is not kept waiting for it.
        if over is not None and over.code == "fenced":
            return _fenced()
        leader = over.leader if over is not None else getattr(error, "leader_address", None)
        if leader is not None and self._rotation.redirect(leader, now=now):
            return 0.0
        self._failures += 1
        pause_s = backoff_s(self._failures, self._chance())
        # The first failures of a failover are ordinary; a long silence is worth a louder word, now and then.
        if self._failures < QUIET_FAILURES:
            level = logging.INFO
        else:
            level = logging.DEBUG if self._failures % TOLD_EVERY else logging.WARNING
        why = f"{address}: {error}"
        log.log(level, "no controller: %s; again in %.1f s; engines go on", why, pause_s)
        return pause_s


def _fenced() -> float:
    log.error("another agent speaks for this node id; is it running twice? Engines stay untouched")
    return FENCED_WAIT_S


async def _leave(calls: dict["asyncio.Task[Session]", str]) -> None:
    """End what was called in vain, also where it was welcomed just now."""
    for call in calls:
        call.cancel()
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, Session):
            await answer.stream.close()
