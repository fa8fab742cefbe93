"""The truth of a controller without a database: gone with the process, and held to the same contract."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from llmgw_controller.adapters.history_memory import MemoryHistory
from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.core.apply import Claimed, apply
from llmgw_controller.core.benchmarks import BenchmarkRun
from llmgw_controller.core.plan import Change, PutEvent
from llmgw_controller.core.rows import EvictionRow, Stored
from llmgw_controller.core.storing import as_storable
from llmgw_controller.ports import BENCHMARKS_KEPT, ClaimTaken, EventRow, Fenced, is_about
from llmgw_kit.ids import LeaseTerm, ModelId

#: Memory is not a log: the newest events, and no more.
EVENTS_KEPT = 2000


class MemoryStore:
    """Store on a value that is replaced as a whole. `lease` is the fence."""

    def __init__(self, lease: MemoryLease) -> None:
        self._lease = lease
        self._stored = Stored()
        self._events: deque[EventRow] = deque(maxlen=EVENTS_KEPT)
        self._next_event = 1
        self._history = MemoryHistory(lease)
        #: Oldest first.
        self._benchmarks: list[BenchmarkRun] = []
        self._next_run = 1

    @property
    def keys(self) -> None:
        """As in the port: no router reads this memory."""
        return

    @property
    def history(self) -> MemoryHistory:
        """As in the port."""
        return self._history

    @property
    def kind(self) -> Literal["postgres", "memory"]:
        """Vanishes with us."""
        return "memory"

    async def clock(self) -> float | None:
        """As in the port."""
        return None

    async def load(self) -> Stored:
        """As in the port."""
        await asyncio.sleep(0)  # gives way, as a real store does
        return self._stored

    async def commit(self, term: LeaseTerm, changes: Sequence[Change]) -> None:
        """As in the port."""
        await asyncio.sleep(0)
        if not self._lease.is_held(term):
            raise Fenced(f"term {term} holds the lease no longer; {len(changes)} changes not written")
        changes = [as_storable(change) for change in changes]
        try:
            self._stored = apply(self._stored, changes)
        except Claimed as e:
            raise ClaimTaken(e.text) from e
        for change in changes:
            if isinstance(change, PutEvent):
                event = EventRow(self._next_event, change.at, term, change.kind, change.subject, change.text,
                                 change.severity)  # fmt: skip
                self._events.append(event)
                self._next_event += 1

    async def events(
        self, *, since: float | None, until: float | None = None, subject: str | None, limit: int
    ) -> list[EventRow]:
        """As in the port."""
        found = (
            event
            for event in reversed(self._events)
            if (since is None or event.at >= since)
            and (until is None or event.at <= until)
            and (subject is None or is_about(event.subject, subject))
        )
        return [event for event, _ in zip(found, range(limit), strict=False)]

    async def first_event(self, since: float) -> int | None:
        """As in the port."""
        return next((event.event_id for event in self._events if event.at >= since), None)

    async def evictions(self, *, since: float | None, model: ModelId | None, limit: int) -> list[EvictionRow]:
        """As in the port."""
        found = [
            one
            for _, one in sorted(self._stored.evictions.items())
            if (since is None or one.decided_at >= since)
            and model in (None, one.victim_model, one.beneficiary_model)
        ]
        return sorted(found, key=lambda one: -one.decided_at)[:limit]

    async def events_after(self, event_id: int, *, subject: str | None, limit: int) -> list[EventRow]:
        """As in the port."""
        found = (
            event
            for event in self._events
            if event.event_id > event_id and (subject is None or is_about(event.subject, subject))
        )
        return [event for event, _ in zip(found, range(limit), strict=False)]

    async def prune_events(self, term: LeaseTerm, *, before: float) -> int:
        """As in the port."""
        if not self._lease.is_held(term):
            raise Fenced(f"term {term} holds the lease no longer; no event forgotten")
        kept = [event for event in self._events if event.at >= before]
        gone = len(self._events) - len(kept)
        self._events = deque(kept, maxlen=EVENTS_KEPT)
        return gone

    async def put_benchmark(self, term: LeaseTerm, run: BenchmarkRun) -> int:
        """As in the port."""
        await asyncio.sleep(0)
        if not self._lease.is_held(term):
            raise Fenced(f"term {term} holds the lease no longer; the run is not stored")
        run_id, self._next_run = self._next_run, self._next_run + 1
        self._benchmarks.append(replace(as_storable(run), run_id=run_id))
        alike = [one for one in self._benchmarks if _kind(one) == _kind(run)]
        alike.sort(key=lambda one: (one.at, one.run_id), reverse=True)
        for old in alike[BENCHMARKS_KEPT:]:
            self._benchmarks.remove(old)
        return run_id

    async def benchmarks(self, model: str | None) -> list[BenchmarkRun]:
        """As in the port."""
        found = [run for run in self._benchmarks if model is None or run.model == model]
        return sorted(found, key=lambda run: (run.at, run.run_id), reverse=True)

    async def close(self) -> None:
        """Nothing to close."""


def _kind(run: BenchmarkRun) -> tuple[str, str, str]:
    return run.model, run.profile, run.gpu_class
