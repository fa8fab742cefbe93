"""The way of usage records when whoever hands them over is cancelled, or stops."""

import asyncio
from collections.abc import Sequence

from llmgw_kit.testing.clock import FakeClock
from llmgw_router.core.usage_lines import UsageRecord
from llmgw_router.ports import UsageBatch
from llmgw_router.usage import UsageLoop
from tests.unit.router.test_usage_spool import named


class Spools:
    """One batch until it is taken."""

    def __init__(self, *names: str) -> None:
        self.records = named(*names)
        self.closed = False

    def read(self) -> UsageBatch:
        assert not self.closed
        batch = UsageBatch()
        batch.records += self.records
        return batch

    def taken(self, batch: UsageBatch) -> None:
        self.records = self.records[len(batch.records) :]

    def sync(self) -> None: ...

    def backlog_bytes(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


class Sink:
    """Takes what it is given when it is let."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self.got: list[str] = []

    async def put(self, records: Sequence[UsageRecord]) -> None:
        self.got += [one.usage_id for one in records]
        self.asked.set()
        await self.open.wait()

    def settled(self) -> None: ...

    async def close(self) -> None: ...


async def test_who_is_cancelled_between_sink_and_spool_hands_nothing_over_twice() -> None:
    spools, sink = Spools("a", "b"), Sink()
    loop = UsageLoop(spools, sink, FakeClock())
    running = asyncio.create_task(loop.run())
    await asyncio.wait_for(sink.asked.wait(), 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    flushing = asyncio.create_task(loop.flush())
    await asyncio.sleep(0)
    sink.open.set()
    await asyncio.wait_for(flushing, 10)
    await loop.close()
    assert sink.got == ["a", "b"]
    assert (spools.records, loop.view.shipped) == ([], 2)


async def test_a_sink_that_never_answers_is_left_at_the_end() -> None:
    spools, sink = Spools("a"), Sink()
    loop = UsageLoop(spools, sink, FakeClock())
    running = asyncio.create_task(loop.run())
    await asyncio.wait_for(sink.asked.wait(), 10)
    running.cancel()
    await asyncio.wait_for(loop.close(), 10)
    assert spools.closed
    assert [one.usage_id for one in spools.records] == ["a"]
