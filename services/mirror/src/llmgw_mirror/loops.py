"""What runs in the background for ever, whatever the disk, the network or a bug of ours does to it.

Only a signal ends a mirror that has started: it serves what it has while something else is broken.
"""

import logging
from collections.abc import Awaitable, Callable

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable

log = logging.getLogger(__name__)

#: Between a failure and the next try: twice as long each time in a row, at most.
PAUSE_S, PAUSE_MOST_S = 1.0, 60.0
#: What has run so long had recovered.
RECOVERED_S = 120.0


async def for_ever(what: str, run: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Run it, and begin it again after a pause when it fails or returns. `what`: for the log."""
    pause = PAUSE_S
    while True:
        began = clock.monotonic_s()
        try:
            await run()
            log.error("%s ended by itself", what)
        except Unavailable as e:
            log.warning("%s is interrupted: %s", what, e.text)
        except OSError as e:
            log.error("%s is interrupted, the system says: %s", what, e)
        except Exception:
            # The rim: a bug here must not take away what is served.
            log.exception("%s failed by a bug", what)
        if clock.monotonic_s() - began >= RECOVERED_S:
            pause = PAUSE_S
        log.info("%s: begun again in %.0f s", what, pause)
        await clock.sleep(pause)
        pause = min(PAUSE_MOST_S, 2 * pause)
