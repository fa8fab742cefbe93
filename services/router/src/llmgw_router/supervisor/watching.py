"""A worker whose loop stands still, told from one that is busy.

Every sweep of a worker writes the time into its row of the slots. No question is sent: memory that does not
change says more, since an unanswered question may lie behind others in a full channel. Judged by looks, not
by elapsed time: a supervisor that was itself frozen must not find its workers dead at its first look.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from llmgw_router.relay.slots import Slots
from llmgw_router.supervisor.seat import Seat

log = logging.getLogger(__name__)

#: Between two looks.
EVERY_S = 1.0
#: A worker that has not begun to serve after so long hangs too; a start takes a second, on a bad day ten.
START_S = 60.0
#: For the dump of its stacks to be written before the process is gone.
DUMP_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """One serving worker as it was found."""

    worker: int
    pid: int
    #: CLOCK_MONOTONIC of its last sweep.
    swept_at_ns: int


class Stillness:
    """Counts looks at which nothing had moved. Pure."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._seen: dict[int, tuple[Look, int]] = {}

    def look(self, looks: Sequence[Look]) -> list[Look]:
        """Those that have now stood still for `most` looks in a row; each is told once a life."""
        hung = []
        seen: dict[int, tuple[Look, int]] = {}
        for look in looks:
            before, still = self._seen.get(look.worker, (None, 0))
            still = still + 1 if before == look else 0
            seen[look.worker] = (look, still)
            if still == self._most:
                hung.append(look)
        self._seen = seen
        return hung


async def watch(
    seats: Sequence[Seat],
    slots: Slots,
    *,
    hang_s: float,
    sleep: Callable[[float], Awaitable[None]],
    start_s: float = START_S,
) -> None:
    """For ever: dump the stacks of a worker that hangs, then end it; its exit brings a fresh one."""
    turning = Stillness(most=max(1, round(hang_s / EVERY_S)))
    starting = Stillness(most=max(1, round(start_s / EVERY_S)))
    while True:
        await sleep(EVERY_S)
        looks = [
            (seat.serving.is_set(), Look(seat.worker, seat.process.pid, seat.swept_at_ns(slots)))
            for seat in seats
            if seat.process is not None
        ]
        found = [
            *starting.look([look for serving, look in looks if not serving]),
            *turning.look([look for serving, look in looks if serving]),
        ]
        hung = [(seats[look.worker], seats[look.worker].process) for look in found]
        for seat, process in hung:
            assert process is not None
            log.error(
                "relay worker %d (pid %d) has not turned its loop for %g s; its stacks follow on stderr, "
                "and it is replaced",
                seat.worker,
                process.pid,
                hang_s if seat.serving.is_set() else start_s,
            )
            process.dump()
        if hung:
            await sleep(DUMP_S)
        for seat, process in hung:
            assert process is not None
            seat.hangs += 1
            # Of the process that hung: its successor, if it died meanwhile, is another object.
            process.kill()
