"""Content that somebody doubts who read it for another reason: proved at once, one after the other."""

import asyncio
import logging

from llmgw_kit.errors import Unavailable
from llmgw_mirror.proving import ContentGone, Prover

log = logging.getLogger(__name__)


class Suspects:
    """Of one mirror process."""

    def __init__(self, prover: Prover) -> None:
        self._prover = prover
        self._doubted: dict[str, None] = {}
        self._more = asyncio.Event()

    def doubt(self, sha256: str) -> None:
        """Prove this content soon; doubting it twice is doubting it once."""
        self._doubted[sha256] = None
        self._more.set()

    async def run(self) -> None:
        """For ever. What cannot be read or set aside now is found again by the scrub, or doubted again."""
        while True:
            while self._doubted:
                sha256 = next(iter(self._doubted))
                try:
                    await self._prover.prove(sha256, on_chunk=_at_once)
                except ContentGone:
                    log.debug("doubted content %s went away", sha256)
                except (Unavailable, OSError) as e:
                    said = e.text if isinstance(e, Unavailable) else e
                    log.warning("doubted content %s is not proved now: %s", sha256, said)
                finally:
                    # A bug, too, is not met again and again by the same content.
                    self._doubted.pop(sha256, None)
            self._more.clear()
            await self._more.wait()


async def _at_once(count: int, read_bytes: int) -> None:
    """Nobody should get doubted content meanwhile, so no pause."""
