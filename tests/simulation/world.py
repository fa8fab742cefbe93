"""Everything that is not decided, in one place: time, order and chance. A seed is a complete bug report.

One event heap, one random source. Each event may leave a line; the hash over all lines is the trace, so
that two runs of one seed can be compared by one word.
"""

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = random.Random(seed)
        self.lines: deque[str] = deque(maxlen=400)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._hash = hashlib.sha256()

    def at(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._queue, (self.now + max(0.0, delay_s), next(self._order), action, args))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action, args = heapq.heappop(self._queue)
            action(*args)
        self.now = until

    def note(self, who: str, what: str) -> None:
        line = f"t={self.now:9.2f} {who:>6} {what}"
        self._hash.update(line.encode())
        self.lines.append(line)

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()[:16]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def between(self, low: float, high: float) -> float:
        return self.rng.uniform(low, high)


#: A held pipe is looked at again so often.
LOOK_S = 0.1
ROUNDING_S = 1e-6


class Pipe:
    """One direction of a stream: delivers in order, each message after a delay; nothing once closed.

    While `held` says so, nothing arrives and nothing is lost: a link that is cut in this direction."""

    def __init__(
        self, world: World, receive: Callable[[Any], None], held: Callable[[], bool] = lambda: False
    ) -> None:
        self._world = world
        self._receive = receive
        self._held = held
        self._free_at = 0.0
        #: (When it arrives at the earliest, what), in the order of sending.
        self._due: deque[tuple[float, Any]] = deque()
        self._hearing = False
        self.open = True

    def send(self, message: Any) -> None:
        if not self.open:
            return
        due = max(self._free_at, self._world.now + self._world.between(0.005, 0.15))
        self._free_at = due
        self._due.append((due, message))
        self._world.at(due - self._world.now, self._pump)

    def _pump(self) -> None:
        # What hearing a message makes arrive must not overtake the rest of it. Timers of one moment may come
        # in any order, so the queue says what is next.
        while self._due and self.open and not self._hearing:
            due, message = self._due[0]
            early_s = due - self._world.now
            if self._held() or early_s > ROUNDING_S:
                self._world.at(max(LOOK_S if self._held() else 0.0, early_s), self._pump)
                return
            self._due.popleft()
            self._hearing = True
            try:
                self._receive(message)
            finally:
                self._hearing = False
