"""Background work that nothing from outside ends."""

import asyncio
import errno
import logging

import pytest

from llmgw_kit.errors import Unavailable
from llmgw_kit.lifecycle import cancel_all
from llmgw_kit.testing.clock import FakeClock
from llmgw_mirror.loops import PAUSE_MOST_S, for_ever

FAULTS = [
    OSError(errno.EMFILE, "Too many open files"),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    Unavailable("Postgres does not answer"),
    KeyError("a bug"),
    None,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_it_is_begun_again_after_a_pause(fault: Exception | None, fake_clock: FakeClock) -> None:
    begun = 0

    async def run() -> None:
        nonlocal begun
        begun += 1
        if begun > 2:
            await asyncio.Event().wait()
        if fault is not None:
            raise fault

    task = asyncio.create_task(for_ever("work", run, fake_clock))
    await fake_clock.advance(0)
    assert begun == 1
    await fake_clock.advance(0.9)
    assert begun == 1
    await fake_clock.advance(0.2)
    assert begun == 2
    await fake_clock.advance(1.5)
    assert begun == 2
    await fake_clock.advance(0.5)
    assert begun == 3
    await cancel_all(task)
    assert task.cancelled()


async def test_what_always_fails_is_tried_once_a_minute_and_a_bug_keeps_its_traceback(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    begun = 0

    async def run() -> None:
        nonlocal begun
        begun += 1
        raise KeyError("a bug")

    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(for_ever("work", run, fake_clock))
        for _ in range(60):
            await fake_clock.advance(PAUSE_MOST_S)
        await cancel_all(task)
    assert 60 <= begun <= 66
    assert sum(record.exc_info is not None for record in caplog.records) == begun
