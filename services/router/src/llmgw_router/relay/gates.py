"""Limits that the workers of a router count together: what runs, what waits, and whose turn it is.

Each worker writes its own row of cells in the slots' memory and reads the others'; nobody locks. Two
workers that look in the same microsecond may both find the last place free, so a limit is exact to the
number of workers less one, and nothing is ever counted twice or lost: a dead worker's row is cleared.
"""

from llmgw_router.core.admission import share
from llmgw_router.relay.slots import GATE_HEAD, GATE_RUNNING, GATE_WAITING, Slots

#: The router's own gate, which nobody has to ask for.
ROUTER_GATE = 0


class Gate:
    """One thing that is limited: the requests of a model, or all of them.

    Until the supervisor has given it a number, its place in the shared memory, a worker knows only what is
    its own, and keeps to an even share of the limit.
    """

    __slots__ = ("_number", "_others", "_own", "head", "limit", "peers", "running", "waiting", "workers")

    def __init__(
        self, slots: Slots, worker: int, *, limit: int | None = None, number: int | None = None
    ) -> None:
        self.workers = slots.workers
        self._own = slots.gates_of(worker)
        self._others = [slots.gates_of(other) for other in range(slots.workers) if other != worker]
        self._number: int | None = None
        #: Whether there are others to count with.
        self.peers = slots.workers > 1
        #: None: any number.
        self.limit = limit
        self.running = 0
        self.waiting = 0
        #: Rank of who is next here (core/admission.py); 0: nobody waits.
        self.head = 0
        if number is not None:
            self.joined(number)

    @property
    def numbered(self) -> bool:
        return self._number is not None

    def joined(self, number: int) -> None:
        """From here on the other workers see these numbers, and this one theirs."""
        self._number = number
        self._own[number + GATE_RUNNING] = self.running
        self._own[number + GATE_WAITING] = self.waiting
        self._own[number + GATE_HEAD] = self.head

    def left(self) -> None:
        """From here on the number is another's: only this worker's own count, until there is a new one."""
        number, self._number = self._number, None
        if number is not None:
            for field in (GATE_RUNNING, GATE_WAITING, GATE_HEAD):
                self._own[number + field] = 0

    def publish(self) -> None:
        """Let the others see what runs here; whoever changes `running` under a limit calls it."""
        if self._number is not None:
            self._own[self._number + GATE_RUNNING] = self.running

    def wait(self, change: int) -> None:
        """One more waits (1), or one less (-1)."""
        self.waiting += change
        if self._number is not None:
            self._own[self._number + GATE_WAITING] = self.waiting

    def next_is(self, head: int) -> None:
        """Whose turn it is here; 0: nobody's."""
        self.head = head
        if self._number is not None:
            self._own[self._number + GATE_HEAD] = head

    def full(self) -> bool:
        """Whether the limit is reached, over all workers."""
        limit = self.limit
        if limit is None:
            return False
        return self._over(self.running, GATE_RUNNING, limit)

    def crowded(self, most: int) -> bool:
        """Whether `most` wait already, over all workers."""
        return self._over(self.waiting, GATE_WAITING, most)

    def _over(self, own: int, field: int, limit: int) -> bool:
        if not self._others:
            return own >= limit
        if self._number is None:
            return own >= share(limit, self.workers)
        at = self._number + field
        for cells in self._others:
            own += cells[at]
        return own >= limit

    def others_wait(self) -> bool:
        """Whether requests wait in another worker."""
        if self._number is not None:
            at = self._number + GATE_HEAD
            for cells in self._others:
                if cells[at]:
                    return True
        return False

    def after_others(self, rank: int) -> bool:
        """Whether somebody waits in another worker whose turn is before this one's."""
        if self._number is not None:
            at = self._number + GATE_HEAD
            for cells in self._others:
                if 0 < cells[at] < rank:
                    return True
        return False
