"""Questions to a node over its agent's stream, and what comes back: a result, a log, a benchmark.

An ask lives as long as its session and its term, never longer: whatever ends either ends it with a word.
What comes back waits in a bounded buffer; of a log that nobody reads fast enough the oldest part is
dropped, and that is told. Nothing here ever makes the reading of an agent's stream wait.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from llmgw.v1 import agent_pb2 as pb
from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError, Unavailable
from llmgw_kit.ids import LeaseTerm, NodeId

log = logging.getLogger(__name__)

#: Asks of one node, and of all, that may be open: each is somebody's terminal.
NODE_MOST = 16
ALL_MOST = 64
#: Those of calls that ask a whole fleet are beside them: so many at once, and the rest takes turns. They
#: neither end anybody's log nor are kept out by one.
TURNS = 32
#: Of one ask's buffer: a whole tail, and some seconds of a log that is followed.
BUFFER_BYTES = 2 << 20
#: Of anything but logs.
BUFFER_REPLIES = 1024

Reply = pb.CommandResult | pb.LogPiece | pb.BenchmarkReport


class Ask:
    """One question. Read it from one task only."""

    def __init__(self, node_id: NodeId, command_id: str, clock: Clock, *, in_turn: bool = False) -> None:
        self.node_id = node_id
        self.command_id = command_id
        #: One of many of the same call.
        self.in_turn = in_turn
        self._clock = clock
        self._replies: deque[Reply] = deque()
        self._bytes = 0
        self._gap = False
        self._error: LlmgwError | None = None
        self._woken = asyncio.Event()
        #: The node said its last word, or its session is gone: there is nothing to cancel.
        self.over = False

    def put(self, reply: Reply) -> None:
        """Take one answer; never waits."""
        if self.over:
            return
        self.over = isinstance(reply, pb.CommandResult) or reply.end
        self._replies.append(reply)
        self._bytes += _size(reply)
        while self._bytes > BUFFER_BYTES or len(self._replies) > BUFFER_REPLIES:
            if len(self._replies) == 1:
                break  # the newest is kept, whatever its size
            self._bytes -= _size(self._replies.popleft())
            self._gap = True
        self._woken.set()

    def end(self, error: LlmgwError) -> None:
        """Nothing more can come; what is here is still read first."""
        if not self.over:
            self.over, self._error = True, error
            self._woken.set()

    async def next(self, within_s: float | None = None) -> Reply:
        """The next answer. Raises what ended it, and Unavailable when nothing came `within_s`."""
        until = None if within_s is None else self._clock.monotonic_s() + within_s
        while not self._replies:
            if self._error is not None:
                raise self._error
            self._woken.clear()
            if not await self._wait(until):
                raise Unavailable(
                    f"node {self.node_id} did not answer within {within_s:g} s", code="no_answer",
                    next_steps=["its agent may be older, or busy: llmgwctl nodes"],
                )  # fmt: skip
        reply = self._replies.popleft()
        self._bytes -= _size(reply)
        if self._gap and isinstance(reply, pb.LogPiece):
            reply.gap, self._gap = True, False
        return reply

    async def _wait(self, until: float | None) -> bool:
        if until is None:
            await self._woken.wait()
            return True
        waiting = asyncio.ensure_future(self._woken.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(max(0.0, until - self._clock.monotonic_s())))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            return self._woken.is_set()
        finally:
            waiting.cancel()
            sleeping.cancel()
            await asyncio.gather(waiting, sleeping, return_exceptions=True)


def _size(reply: Reply) -> int:
    return len(reply.data) if isinstance(reply, pb.LogPiece) else 0


class Asks:
    """All open questions of one term. `send` hands a message to a node's session; false: it has none."""

    def __init__(
        self, clock: Clock, term: LeaseTerm, send: Callable[[NodeId, pb.ConnectResponse], bool]
    ) -> None:
        self._clock = clock
        self._term = term
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[str, Ask] = {}
        self._turns = asyncio.Semaphore(TURNS)

    @property
    def open(self) -> int:
        """How many wait for something."""
        return len(self._open)

    @asynccontextmanager
    async def asking_in_turn(
        self, node_id: NodeId, make: Callable[[str], pb.ConnectResponse], *, until: float
    ) -> AsyncIterator[Ask]:
        """As `asking`, for a call that asks many nodes; waits for its turn until then, on the monotonic
        clock. Raises Unavailable also when none came."""
        taking = asyncio.ensure_future(self._turns.acquire())
        sleeping = asyncio.ensure_future(self._clock.sleep(max(0.0, until - self._clock.monotonic_s())))
        try:
            await asyncio.wait({taking, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                raise Unavailable(
                    f"node {node_id} was not asked: too many before it did not answer in time",
                    code="no_turn", next_steps=["ask for fewer nodes at once"],
                )  # fmt: skip
            sleeping.cancel()
            async with self.asking(node_id, make, in_turn=True) as ask:
                yield ask
        finally:
            sleeping.cancel()
            if not taking.cancel() and not taking.cancelled():
                self._turns.release()
            await asyncio.gather(taking, sleeping, return_exceptions=True)

    @asynccontextmanager
    async def asking(
        self, node_id: NodeId, make: Callable[[str], pb.ConnectResponse], *, in_turn: bool = False
    ) -> AsyncIterator[Ask]:
        """Ask a node; `make` builds the command for its id. On the way out what still runs there is
        cancelled. Raises Unavailable when the node is not connected, or too much is asked already."""
        mine = sum(ask.node_id == node_id for ask in self._open.values())
        every = sum(not ask.in_turn for ask in self._open.values())
        if mine >= NODE_MOST or (every >= ALL_MOST and not in_turn):
            raise Unavailable(
                f"{mine} questions to node {node_id} are open, {every} in all",
                code="too_many_asks",
                next_steps=["end some of the logs that are followed, and try again"],
            )  # fmt: skip
        command_id = f"{self._term}-ask-{next(self._numbers)}"
        ask = Ask(node_id, command_id, self._clock, in_turn=in_turn)
        if not self._send(node_id, make(ask.command_id)):
            raise Unavailable(
                f"node {node_id} is not connected", code="node_not_connected",
                next_steps=["try: llmgwctl nodes"],
            )  # fmt: skip
        self._open[ask.command_id] = ask
        try:
            yield ask
        finally:
            self._open.pop(ask.command_id, None)
            if not ask.over:
                self._cancel(node_id, ask.command_id)

    def _cancel(self, node_id: NodeId, command_id: str) -> None:
        self._send(node_id, pb.ConnectResponse(cancel_command=pb.CancelCommand(command_id=command_id)))

    def hear(self, node_id: NodeId, reply: Reply) -> bool:
        """An answer came; whether somebody had asked. What nobody listens to any more is cancelled again:
        the first word of it may have been lost."""
        ask = self._open.get(reply.command_id)
        if ask is not None and ask.node_id == node_id:
            ask.put(reply)
            return True
        if not isinstance(reply, pb.CommandResult) and not reply.end:
            self._cancel(node_id, reply.command_id)
        return False

    def gone(self, node_id: NodeId) -> None:
        """The node's session ended, whether another follows or not."""
        for ask in self._open.values():
            if ask.node_id == node_id:
                ask.end(
                    Unavailable(
                        f"node {node_id} went away: its agent stopped, restarted or is out of reach",
                        code="node_went_away",
                        next_steps=["try again when it is back: llmgwctl nodes"],
                    )
                )

    def end_all(self, error: Callable[[], LlmgwError]) -> None:
        """The term is over."""
        for ask in self._open.values():
            ask.end(error())
