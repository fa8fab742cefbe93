"""Commands that take a while, each a task of its own: a stop must not wait behind a log that is followed.

They end with their session: whoever asked hears nothing more of an older one. What must not end with it,
a fetch or a removal on its way, belongs to the node (`prefetch.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from llmgw_agent.core.load import Level, Progress
from llmgw_agent.core.logs import Chunk
from llmgw_agent.core.paths import folder_name
from llmgw_agent.core.shard import ShardState
from llmgw_agent.core.words import (
    CancelWord,
    DriveReport,
    DriveWord,
    LogPiece,
    LogsWord,
    LongWord,
    PrefetchWord,
    RemoveWord,
    Result,
    Said,
)
from llmgw_agent.loops.driving import Driving
from llmgw_agent.loops.reading import read_log
from llmgw_agent.loops.view import View
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)

#: Under way at one time; a controller that asks for more has lost count.
MOST = 32


class Commands:
    """Of one session. `say` raises Unavailable when the stream has ended."""

    def __init__(self, view: View, say: Callable[[Said], Awaitable[None]], clock: Clock) -> None:
        self._view, self._say, self._clock = view, say, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._driven: set[str] = set()

    def begin(self, word: LongWord) -> None:
        """Start on it; a command that is under way is not started twice."""
        if word.command_id in self._tasks:
            return
        task = asyncio.create_task(self._run(word), name=f"command {word.command_id}")
        self._tasks[word.command_id] = task
        self._view.commands = len(self._tasks)
        task.add_done_callback(lambda _: self._ended(word.command_id))

    def _ended(self, command_id: str) -> None:
        del self._tasks[command_id]
        self._view.commands = len(self._tasks)

    def cancel(self, word: CancelWord) -> None:
        """Nobody listens any more. One that is over or unknown needs nothing."""
        if (task := self._tasks.get(word.command_id)) is not None:
            task.cancel()

    async def close(self) -> None:
        """End all."""
        await cancel_all(*self._tasks.values())

    async def _run(self, word: LongWord) -> None:
        try:
            if len(self._tasks) > MOST:
                raise Unavailable(f"{MOST} commands are under way on this node", code="too_many_commands")
            last = await self._do(word)
        except LlmgwError as e:
            last = _refusal(word, e.text)
        except OSError as e:
            last = _refusal(word, str(e))
        except Exception as e:
            # A bug, and nobody awaits this task: whoever asked would wait until their time is up.
            log.exception("command %s failed", word)
            last = _refusal(word, f"{type(e).__name__}: {e}; the agent's log has more")
        with suppress(Unavailable):  # the stream has ended; who listens says why
            await self._say(last)

    async def _do(self, word: LongWord) -> Said:
        """Does it; returns the last word. Raises LlmgwError."""
        desk = self._view.node.weights
        match word:
            case RemoveWord():
                removal = await desk.remove(word.key, force=word.force)
                await self._view.refresh()
                return Result(word.command_id, True, removal.text, removal.freed_bytes)
            case PrefetchWord():
                said = desk.prefetch(word.key, word.mirror_urls)
                await self._view.refresh()
                return Result(word.command_id, True, said)
            case LogsWord():
                await self._read(word)
                return LogPiece(word.command_id, b"", end=True)
            case DriveWord():
                await self._drive(word)
                return DriveReport(word.command_id, end=True)

    async def _read(self, word: LogsWord) -> None:
        node = self._view.node
        path = node.world.log_folder / f"{folder_name(word.shard_id, what='shard id')}.log"

        def alive() -> bool:
            shard = node.shards().get(word.shard_id)
            return shard is not None and shard.state is not ShardState.EXITED

        async def say(chunk: Chunk) -> None:
            await self._say(LogPiece(word.command_id, chunk.data, chunk.gap))

        # At once, so that whoever asked knows that this agent reads: the log may be silent for hours.
        await self._say(LogPiece(word.command_id, b""))
        await read_log(
            node.world.log_file(path), say, lines=word.tail_lines, follow=word.follow, alive=alive,
            clock=self._clock,
        )  # fmt: skip

    async def _drive(self, word: DriveWord) -> None:
        node = self._view.node
        spec = node.serving(word.shard_id).spec
        if spec.http_port is None or spec.rank != 0:
            raise InvalidRequest(f"shard {word.shard_id} answers no requests; its group's head does")
        if word.shard_id in self._driven:
            raise Conflict(f"a benchmark of shard {word.shard_id} is under way", code="under_way")

        async def say(found: Level | Progress) -> None:
            if isinstance(found, Level):
                await self._say(DriveReport(word.command_id, level=found))
            else:
                await self._say(DriveReport(word.command_id, progress=found))

        self._driven.add(word.shard_id)
        try:
            at = HostPort(node.world.connect_host, spec.http_port)
            run = Driving(
                node.world.load, at, spec, word.load, self._clock, lambda: node.serving(word.shard_id)
            )
            log.info("benchmark of shard %s begins", word.shard_id)
            await run.run(say)
        finally:
            self._driven.discard(word.shard_id)


def _refusal(word: LongWord, text: str) -> Said:
    match word:
        case LogsWord():
            return LogPiece(word.command_id, b"", end=True, error=text)
        case DriveWord():
            return DriveReport(word.command_id, end=True, error=text)
        case _:
            return Result(word.command_id, False, text)
