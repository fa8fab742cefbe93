"""Routes over a restart: kept on disk as they are heard, and used while no controller answers."""

import asyncio
import logging
from dataclasses import replace

from llmgw_kit.clock import Clock
from llmgw_router.board import Board, Source
from llmgw_router.core.learned import Routes, only_alive, same_table
from llmgw_router.ports import Probe, RoutesStore

log = logging.getLogger(__name__)

#: At most one write of the kept routes in so long.
KEEP_EVERY_S = 1.0
#: Kept endpoints are asked again this often while no controller is heard.
REPROBE_S = 5.0


async def keep_routes(board: Board, store: RoutesStore, clock: Clock) -> None:
    """Write what a controller said to disk, soon after it said so. For ever."""
    kept: Routes | None = None
    async for routes in board.published():
        if board.controller_heard() and not (kept and same_table(kept, routes)):
            try:
                await asyncio.to_thread(store.save, routes)
                kept = routes
            except OSError as e:
                log.error("routes cannot be kept: %s; a restart without a controller would have none", e)
        await clock.sleep(KEEP_EVERY_S)


async def use_kept_routes(kept: Routes, board: Board, probe: Probe, clock: Clock) -> None:
    """Route by kept endpoints that answer, until a controller is heard; then return."""
    rows = list(kept.endpoints.values())
    used: frozenset[str] | None = None
    while not board.controller_heard():
        alive = await probe.alive(rows)
        if board.controller_heard():
            return
        if alive != used:
            used = alive
            log.warning(
                "no controller heard: using routes kept of term %s, version %s; %d of %d endpoints answer",
                kept.term,
                kept.version,
                len(alive),
                len(rows),
            )
            # What the fleet looked like is not kept as news: its age would be a lie.
            board.publish(replace(only_alive(kept, alive), fleet=None), Source.KEPT)
        await clock.sleep(REPROBE_S)
