"""A mirror in this process with a scripted registry to look in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from llmgw_kit.clock import Clock, SystemClock
from llmgw_mirror.composition_finding import Finders, build_finders
from llmgw_mirror.fetching_repository import FetchingRepository
from llmgw_mirror.finding import Finding

from .hub_registry import HubRegistry
from .world import World, world


@dataclass
class Looking:
    """The mirror, and what looks in the registry for it."""

    here: World
    finders: Finders

    @property
    def finding(self) -> Finding:
        return self.finders.finding

    @property
    def fetching(self) -> FetchingRepository:
        return self.finders.fetching


@asynccontextmanager
async def looking_in(
    hub: HubRegistry | None, folder: Path, *, clock: Clock | None = None, **settings: object
) -> AsyncIterator[Looking]:
    """`clock` is the registry client's; the mirror itself has the machine's."""
    if hub is not None:
        settings["registry_url"] = hub.base
    async with world(folder / "store", clock=None, **settings) as here:
        finders = build_finders(here.settings, here.built, clock or SystemClock())
        try:
            yield Looking(here, finders)
        finally:
            await finders.close()
