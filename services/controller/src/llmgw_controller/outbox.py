"""What waits to go down one stream: bounded, newest state first, an end that is always last."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

M = TypeVar("M")

#: Notices of one stream that may wait. State repairs a lost notice, so dropping beats growing without bound.
NOTICES_MAX = 256


class Outbox(Generic[M]):
    """One reader, any number of writers on the same loop; no method of a writer waits.

    `state` is level-triggered: a newer one takes the place of one not yet sent. `notice` is said once, after
    the state before it. After `end` nothing is taken, and the reader stops when the last word is sent."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state: M | None = None
        self._notices: deque[M] = deque()
        self._last: M | None = None
        self._ended = False
        self._woken = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Nothing more will be taken."""
        return self._ended

    @property
    def waiting(self) -> bool:
        """Something is not sent yet."""
        return self._state is not None or bool(self._notices)

    def state(self, message: M, outdates: Callable[[M], bool] = lambda _: False) -> None:
        """Say the whole state anew. Waiting notices that it outdates are dropped: it overtakes them, and what
        they say may not be so any more."""
        if not self._ended:
            self._state = message
            self._notices = deque(one for one in self._notices if not outdates(one))
            self._woken.set()

    def notice(self, message: M) -> None:
        """Say one thing; the oldest is dropped, and told in the log, when too many wait."""
        if self._ended:
            return
        if len(self._notices) >= NOTICES_MAX:
            self._notices.popleft()
            log.warning(
                "%s does not take what it is told; dropped a notice, the state repairs it", self._name
            )
        self._notices.append(message)
        self._woken.set()

    def end(self, last: M | None) -> None:
        """Say `last`, if anything, and no more; what waits is dropped. The first call decides."""
        if not self._ended:
            self._ended, self._last = True, last
            self._woken.set()

    async def messages(self) -> AsyncIterator[M]:
        """What is to be sent, as it comes, until the end."""
        while True:
            while not self._ended and (self._state is not None or self._notices):
                if self._state is not None:
                    message, self._state = self._state, None
                else:
                    message = self._notices.popleft()
                yield message
            if self._ended:
                if self._last is not None:
                    yield self._last
                return
            self._woken.clear()
            await self._woken.wait()
