"""Demands of clients that leave, and of clients that invent paths."""

import asyncio
import gc
import logging
from pathlib import Path

import pytest

from llmgw_kit.errors import NotFound, Unavailable
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.pull_through import ASKING_MOST, PullThrough

from .finding_world import looking_in
from .hub_registry import HubRegistry, hub_registry
from .scripted import gate, status
from .world import until


async def busy(
    at: PullThrough, hub: HubRegistry, opened: asyncio.Event, count: int
) -> list[asyncio.Task[None]]:
    """So many demands, each for a path of its own, that the registry lets wait."""
    hub.acts.extend([gate(opened, status(404, b"{}"))] * count)
    tasks = [asyncio.create_task(at.demand("org/m", "main", f"made-up-{n}")) for n in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_so_many_different_paths_are_asked_for_at_once_and_no_more(
    tmp_path: Path, fake_clock: FakeClock
) -> None:
    async with hub_registry() as hub, looking_in(hub, tmp_path, clock=fake_clock) as at:
        pull, opened = PullThrough(at.fetching, ["org/*"], fake_clock), asyncio.Event()
        tasks = await busy(pull, hub, opened, ASKING_MOST)
        for n in range(100):
            with pytest.raises(Unavailable) as told:
                await pull.demand("org/m", "main", f"one-more-{n}")
            assert told.value.code == "busy"
            assert told.value.next_steps
            assert told.value.retry_after_s
        # What is being asked for may be waited for by more.
        same = asyncio.create_task(pull.demand("org/m", "main", "made-up-0"))
        opened.set()
        assert all(
            isinstance(e, NotFound) for e in await asyncio.gather(*tasks, same, return_exceptions=True)
        )
        with pytest.raises(NotFound):
            await pull.demand("org/m", "main", "one-more-0")
        await pull.close()


async def test_a_refusal_that_nobody_waits_for_is_no_lost_error(
    tmp_path: Path, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with hub_registry() as hub, looking_in(hub, tmp_path, clock=fake_clock) as at:
        pull, opened = PullThrough(at.fetching, ["org/*"], fake_clock), asyncio.Event()
        (waiting,) = await busy(pull, hub, opened, 1)
        await until(lambda: len(hub.requests) == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # Its traceback would keep what it waited for.
        del waiting
        opened.set()
        await until(lambda: not pull._asking)
        gc.collect()
        await asyncio.sleep(0)
        assert [record.getMessage() for record in caplog.records] == []
        await pull.close()
