"""What would follow if a node ended: looked for beside the views, seldom, and in a thread of its own."""

import asyncio
from dataclasses import dataclass

from llmgw_controller.core.risk import NodeLossRisk, risks
from llmgw_controller.core.state import Snapshot
from llmgw_kit.clock import Clock
from llmgw_kit.ids import LeaseTerm

#: A finding is good for so long.
FRESH_S = 5.0
#: And for so many times what it took: looking never uses more than one part in so many of a core.
REST = 20.0
#: The first view of a term waits so long for it: a small fleet is looked through by then.
PATIENCE_S = 0.25


@dataclass(frozen=True)
class _Found:
    term: LeaseTerm
    risks: tuple[NodeLossRisk, ...]
    #: On the monotonic clock: not again before.
    again_at: float


class Lookout:
    """Keeps the newest finding, of the present term only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: _Found | None = None
        self._looking: asyncio.Task[None] | None = None

    async def risks(self, snapshot: Snapshot, now: float) -> tuple[NodeLossRisk, ...] | None:
        """Some seconds old at most, or older where looking takes long; None: not found yet."""
        found = self._found if self._found and self._found.term == snapshot.term else None
        due = found is None or self._clock.monotonic_s() >= found.again_at
        if due and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(snapshot, now), name="lookout")
        if found is None and self._looking is not None:
            await asyncio.wait({self._looking}, timeout=PATIENCE_S)
            found = self._found if self._found and self._found.term == snapshot.term else None
        return found.risks if found else None

    async def _look(self, snapshot: Snapshot, now: float) -> None:
        began = self._clock.monotonic_s()
        seen = await asyncio.to_thread(risks, snapshot, now)
        ended = self._clock.monotonic_s()
        self._found = _Found(snapshot.term, seen, ended + max(FRESH_S, REST * (ended - began)))
