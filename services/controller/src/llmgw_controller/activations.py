"""Requests for models that are not up: who waits here, and the rows that stand for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from llmgw_controller.core.plan import PutActivation
from llmgw_controller.core.rows import ActivationRow
from llmgw_controller.demand_book import DemandBook
from llmgw_controller.leadership import Tenure
from llmgw_controller.ledger import Ledger
from llmgw_kit.ids import ModelId, RouterId

#: A row is asked anew so often while somebody waits: well below the time after which it counts as abandoned.
ASK_EVERY_S = 8.0

#: An operator's activation stays open so long unless it is ready before: nobody repeats it. Fetching a large
#: model and loading it takes less.
OPERATOR_KEEPS_S = 3600.0


@dataclass(eq=False)
class Waiting:
    """One open Activate stream."""

    model: ModelId
    #: None: an operator.
    router_id: RouterId | None
    requests: int


class Activations:
    """Of one term. A row per model in the store, however many streams wait for it."""

    def __init__(self, tenure: Tenure, ledger: Ledger) -> None:
        self._tenure = tenure
        self._ledger = ledger
        self._waiting: list[Waiting] = []
        #: How the asks of this term ended.
        self.demand = DemandBook(tenure.started)
        self._passed = asyncio.Event()
        self._noted_at: dict[ModelId, float] = {}

    @contextmanager
    def waiting(self, model: ModelId, router_id: RouterId | None, requests: int) -> Iterator[None]:
        """While the stream is open, its model counts as asked for."""
        waiting = Waiting(model, router_id, requests)
        self._waiting.append(waiting)
        try:
            yield
        finally:
            self._waiting.remove(waiting)

    async def ask(self, models: frozenset[ModelId], *, keep_s: float | None = None) -> None:
        """Open, or note a newer ask for each; with `keep_s` it stays open so long although nobody asks
        again. Raises Fenced and Unavailable."""
        if not models:
            return
        async with self._ledger.writing() as stored:
            now = self._tenure.now()
            rows = (
                stored.activations.get(model) or ActivationRow(model, now, now) for model in sorted(models)
            )
            kept = None if keep_s is None else now + keep_s
            await self._ledger.commit(
                [
                    PutActivation(replace(row, asked_at=now, kept_until=_later(row.kept_until, kept)))
                    for row in rows
                ]
            )

    def due(self) -> frozenset[ModelId]:
        """Models somebody waits for whose row is missing or was last asked a while ago."""
        rows, now = self._ledger.stored.activations, self._tenure.now()
        return frozenset(
            waiting.model
            for waiting in self._waiting
            if (row := rows.get(waiting.model)) is None or now - row.asked_at >= ASK_EVERY_S
        )

    def comes_again(self, model: ModelId) -> bool:
        """Whether an ask for what was refused is to be noted: the first for a while."""
        now = self._tenure.now()
        noted_at = self._noted_at.get(model)
        if noted_at is not None and now - noted_at < ASK_EVERY_S:
            return False
        self._noted_at[model] = now
        return True

    def held(self, router_id: RouterId) -> dict[ModelId, int]:
        """Requests that a router said it holds when it asked."""
        found: dict[ModelId, int] = {}
        for waiting in self._waiting:
            if waiting.router_id == router_id:
                found[waiting.model] = max(found.get(waiting.model, 0), waiting.requests)
        return found

    @property
    def routers(self) -> frozenset[RouterId]:
        """Routers with an open stream here."""
        return frozenset(waiting.router_id for waiting in self._waiting if waiting.router_id is not None)

    def passed(self) -> None:
        """A pass is over, or the term is: everybody looks again."""
        woken, self._passed = self._passed, asyncio.Event()
        woken.set()

    def next_pass(self) -> asyncio.Event:
        """Set at the end of the next pass. Take it before looking, so that no pass falls between."""
        return self._passed


def _later(one: float | None, other: float | None) -> float | None:
    known = [moment for moment in (one, other) if moment is not None]
    return max(known, default=None)
