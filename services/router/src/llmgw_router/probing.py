"""Health checks of endpoints that some worker has put aside, or would have; every worker hears the result.

One loop for the whole router, in the supervisor: a hundred workers need not ask a sick engine a hundred
times. It looks at the table of that moment each time, so that a reload neither stops nor restarts it
(HO12).
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from llmgw_kit.clock import Clock
from llmgw_router.board import Board
from llmgw_router.ports import Probe

log = logging.getLogger(__name__)

#: How soon it is noticed that checks have been switched on.
_OFF_S = 5.0


class Suspecting(Protocol):
    """The pool, as far as its suspicions go."""

    @property
    def suspects(self) -> frozenset[str]: ...

    @property
    def probe_s(self) -> float | None:
        """Period; None: no checks."""

    def probed(self, alive: Iterable[str], dead: Iterable[str]) -> None: ...


async def keep_probing(pool: Suspecting, board: Board, probe: Probe, clock: Clock) -> None:
    """Ask the suspects once a period. For ever."""
    dead_before: frozenset[str] = frozenset()
    while True:
        await clock.sleep(pool.probe_s or _OFF_S)
        endpoints = board.routes.endpoints
        rows = [endpoints[key] for key in sorted(pool.suspects) if key in endpoints]
        if pool.probe_s is None or not rows:
            dead_before = frozenset()
            continue
        alive = await probe.alive(rows)
        dead = frozenset(row.endpoint_id for row in rows) - alive
        for endpoint_id in sorted(dead - dead_before):
            log.warning("endpoint %s does not answer its health check", endpoint_id)
        for endpoint_id in sorted(dead_before & alive):
            log.info("endpoint %s answers its health check again", endpoint_id)
        dead_before = dead
        pool.probed(sorted(alive), sorted(dead))
