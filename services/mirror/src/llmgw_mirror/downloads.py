"""What is on its way, as people watch it: looked at once for all who watch, told when it changes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.store import Stored, version_id
from llmgw_mirror.core.refusals import unknown_version
from llmgw_mirror.core.versions import FileView, VersionView, WeightsState
from llmgw_mirror.flights import Flights

#: How often somebody who watches is told at most, and at least.
LOOK_S, EVERY_S = 1.0, 5.0
#: How old a reading of the disk may be while nothing is known to have changed; another mirror over the store
#: changes it unseen.
DISK_S = 5.0


@dataclass(frozen=True)
class Download:
    """`files`: those that are told; the sums are the whole version's."""

    whole: VersionView
    files: tuple[FileView, ...]


class Downloads:
    """Of one mirror process."""

    def __init__(self, flights: Flights, clock: Clock) -> None:
        self._flights = flights
        self._clock = clock
        self._looking = asyncio.Lock()
        self._stored: list[Stored] = []
        self._read_at: float | None = None
        self._read_hints = 0
        self._shown: list[VersionView] = []
        self._shown_at: float | None = None

    async def now(self) -> list[Download]:
        """Versions that are not whole, each with the files that are not here."""
        return _missing(await self._look(fresh=True))

    async def watch(
        self, model: str | None = None, version: str | None = None
    ) -> AsyncIterator[list[Download]]:
        """The same at every change and every few seconds; whoever reads slowly misses what lies between.

        Of one version that is named by both: all its files, also when it is whole, so that its end is seen.
        Raises NotFound when that is not known, or not any more."""
        last: list[Download] | None = None
        told_at = 0.0
        while True:
            views = [
                view
                for view in await self._look(fresh=last is None)
                if model in (None, view.model) and version in (None, view.version)
            ]
            if model is None or version is None:
                found = _missing(views)
            elif views:
                found = [Download(view, view.files) for view in views]
            else:
                raise unknown_version(model, version)
            now = self._clock.monotonic_s()
            if found != last or now - told_at >= EVERY_S:
                last, told_at = found, now
                yield found
            await self._clock.sleep(LOOK_S)

    async def _look(self, *, fresh: bool) -> list[VersionView]:
        """One look serves everybody who watches. `fresh`: the disk is read in any case."""
        async with self._looking:
            now = self._clock.monotonic_s()
            if not fresh and self._shown_at is not None and now - self._shown_at < LOOK_S / 2:
                return self._shown
            hints = self._flights.landed.hints
            old = self._read_at is None or now - self._read_at >= DISK_S
            if fresh or old or hints != self._read_hints:
                self._stored = await self._flights.load_all()
                self._read_at, self._read_hints = now, hints
            self._shown = [
                self._flights.view(version_id(one.wish.model, one.wish.version), one) for one in self._stored
            ]
            self._shown_at = now
            return self._shown


def _missing(views: Sequence[VersionView]) -> list[Download]:
    found = []
    for view in views:
        files = tuple(file for file in view.files if file.state is not WeightsState.PRESENT)
        if files:
            found.append(Download(view, files))
    return found
