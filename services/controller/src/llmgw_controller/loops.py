"""The smaller loops of a leader, beside the pass: weights to fetch, the routers' map, who else could lead,
models that somebody waits for.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from llmgw_controller.activations import Activations
from llmgw_controller.core.activity import Activity
from llmgw_controller.core.state import ControllerSeen
from llmgw_controller.ledger import Ledger
from llmgw_controller.ports import ActivityReader, MirrorClient, Roster
from llmgw_kit.clock import Clock
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.ids import ModelId, ReplicaId

log = logging.getLogger(__name__)

#: The mirror is asked for one model's weights at most so often.
FETCH_EVERY_S = 3.0


class Fetches:
    """Asks the mirror for weights: one call per model at a time, not too often, never in a pass's way."""

    def __init__(self, mirror: MirrorClient, ledger: Ledger, clock: Clock) -> None:
        self._mirror = mirror
        self._ledger = ledger
        self._clock = clock
        self._tasks: dict[ModelId, asyncio.Task[None]] = {}
        self._asked_at: dict[ModelId, float] = {}
        self._told: dict[ModelId, str] = {}

    def want(self, model: ModelId) -> None:
        """Ask for it soon, unless that was just done."""
        running = self._tasks.get(model)
        asked_at = self._asked_at.get(model)
        now = self._clock.monotonic_s()
        if running is not None or (asked_at is not None and now - asked_at < FETCH_EVERY_S):
            return
        self._asked_at[model] = now
        task = asyncio.create_task(self._fetch(model), name=f"fetch {model}")
        self._tasks[model] = task
        task.add_done_callback(lambda _: self._tasks.pop(model, None))

    async def _fetch(self, name: ModelId) -> None:
        model = self._ledger.catalog.models.get(name)
        if model is None:
            return
        try:
            await self._mirror.fetch(model)
            self._told.pop(name, None)
        except LlmgwError as e:
            # It is asked again while a replica waits; the same trouble again is not news.
            if self._told.get(name) != e.text:
                self._told[name] = e.text
                level = logging.ERROR if isinstance(e, InvalidRequest) else logging.WARNING
                log.log(level, "weights of %s: %s", name, e.text)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ActivityLoop:
    """Keeps the newest reading of the routers' map, and removes what no replica is left for."""

    def __init__(self, reader: ActivityReader, ledger: Ledger, clock: Clock, tick_s: float) -> None:
        self._reader = reader
        self._ledger = ledger
        self._strangers: frozenset[ReplicaId] = frozenset()
        self._clock = clock
        self._tick_s = tick_s
        self._newest = Activity(missing_reason="not_read_yet")
        self._read_at: float | None = None

    @property
    def newest(self) -> Activity:
        """Aged: a map's own clock goes on while we hold it, so that no report stays fresh by our not
        looking."""
        if self._newest.map is None or self._read_at is None:
            return self._newest
        passed = self._clock.monotonic_s() - self._read_at
        return Activity(map=replace(self._newest.map, now=self._newest.map.now + passed))

    async def run(self) -> None:
        """For ever."""
        while True:
            self._newest = await self._reader.read()
            self._read_at = self._clock.monotonic_s()
            await self._forget_strangers()
            await self._clock.sleep(self._tick_s)

    async def _forget_strangers(self) -> None:
        """A time whose replica had no row at two readings is removed: a later replica may bear its name."""
        if self._newest.map is None or not self._ledger.known:
            return
        strangers = frozenset(self._newest.map.touched.keys() - self._ledger.stored.replicas.keys())
        if gone := strangers & self._strangers:
            await self._reader.forget(gone)
        self._strangers = strangers - gone


class RosterLoop:
    """Announces this controller, leader or not, and keeps who else did."""

    def __init__(self, roster: Roster, me: ControllerSeen, clock: Clock, tick_s: float) -> None:
        self._roster = roster
        self._me = me
        self._clock = clock
        self._tick_s = tick_s
        #: Ourselves included, by address.
        self.seen: tuple[ControllerSeen, ...] = (me,)

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                self.seen = await self._roster.announce(self._me)
            except Unavailable as e:
                # Whoever waits for the same store says so louder.
                log.debug("not announced: %s", e.text)
            await self._clock.sleep(self._tick_s)

    async def leave(self) -> None:
        """Take our row away; without an answer it just grows old."""
        with suppress(Unavailable):
            await self._roster.leave(self._me)


async def keep_asking(activations: Activations, clock: Clock, hint: Callable[[], None]) -> None:
    """Renew the rows of models that somebody waits for. For ever; raises Fenced."""
    while True:
        due = activations.due()
        if due:
            try:
                await activations.ask(due)
                hint()
            except Unavailable as e:
                log.warning("activations are not renewed: %s", e.text)
        await clock.sleep(1.0)
