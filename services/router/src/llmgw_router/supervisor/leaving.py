"""Waiting for processes to end, within a bound that can be brought nearer; then they are killed."""

import asyncio
import logging
from collections.abc import Sequence

from llmgw_router.supervisor.link import WorkerProcess

logger = logging.getLogger(__name__)


class Leaving:
    """One wait at a time."""

    def __init__(self) -> None:
        self._bound: asyncio.Timeout | None = None

    def within(self, timeout_s: float) -> None:
        """Wait no longer than this from now on; never lengthens a wait."""
        if self._bound is None:
            return
        until = asyncio.get_running_loop().time() + timeout_s
        before = self._bound.when()
        if before is None or until < before:
            self._bound.reschedule(until)

    async def wait(self, processes: Sequence[WorkerProcess], timeout_s: float) -> None:
        """Until all have ended; who has not by then is killed, and waited for."""
        try:
            async with asyncio.timeout(timeout_s) as self._bound:
                for process in processes:
                    await process.exited.wait()
        except TimeoutError:
            for process in processes:
                if not process.exited.is_set():
                    logger.warning("relay worker %d did not end in time; killed", process.pid)
                    process.kill()
            for process in processes:
                await process.exited.wait()
        finally:
            self._bound = None
