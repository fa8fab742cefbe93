"""Reading a log for somebody far away: the tail, and on while its engine lives."""

import asyncio
from collections.abc import Awaitable, Callable

from llmgw_agent.core.logs import Chunk
from llmgw_agent.ports import LogLike
from llmgw_kit.clock import Clock
from llmgw_kit.errors import NotFound

#: Between two looks at a log that is followed.
LOOK_S = 0.25
#: Pieces sent after one look: with LOOK_S a bound on what one follower costs the stream, 1 MiB/s.
PIECES_A_LOOK = 8
#: Lines of a tail.
LINES_MOST = 10_000


async def read_log(
    log: LogLike,
    say: Callable[[Chunk], Awaitable[None]],
    *,
    lines: int,
    follow: bool,
    alive: Callable[[], bool],
    clock: Clock,
) -> None:
    """Returns when all was read; with `follow`, when the engine is not `alive` any more and all was read.

    Raises NotFound when there is no log, or it went away."""
    try:
        for chunk in await _tail(log, min(lines, LINES_MOST), follow=follow, alive=alive, clock=clock):
            await say(chunk)
        while follow:
            # Looked at before the reading, so that what it printed last is read.
            ended = not alive()
            if await _rest(log, say) and ended:
                return
            await clock.sleep(LOOK_S)
    except FileNotFoundError:
        raise NotFound(
            "there is no log: its engine was never launched here, or its log is forgotten"
        ) from None


async def _rest(log: LogLike, say: Callable[[Chunk], Awaitable[None]]) -> bool:
    """Some pieces of what came; whether that was all."""
    for _ in range(PIECES_A_LOOK):
        chunk: Chunk | None = await asyncio.to_thread(log.more)
        if chunk is None:
            return True
        await say(chunk)
    return False


async def _tail(
    log: LogLike, lines: int, *, follow: bool, alive: Callable[[], bool], clock: Clock
) -> "list[Chunk]":
    """Who follows a shard that is not launched yet waits for its log."""
    while True:
        try:
            return list(await asyncio.to_thread(log.tail, lines))
        except FileNotFoundError:
            if not follow or not alive():
                raise
        await clock.sleep(LOOK_S)
