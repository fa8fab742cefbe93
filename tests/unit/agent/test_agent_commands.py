"""Commands that take a while, on a node that is none: what the asker hears when the agent itself is wrong."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llmgw_agent.core.load import Load
from llmgw_agent.core.weights import WeightsKey
from llmgw_agent.core.words import (
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
from llmgw_agent.loops.commands import Commands
from llmgw_agent.loops.view import View
from llmgw_kit.ids import ShardId
from llmgw_kit.testing.clock import FakeClock

KEY = WeightsKey("m", "v")


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        (RemoveWord("c", KEY), Result),
        (PrefetchWord("c", KEY, ()), Result),
        (LogsWord("c", ShardId("s"), 10, follow=False), LogPiece),
        (DriveWord("c", ShardId("s"), Load((1,), None, 1, 1, 1.0)), DriveReport),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, type) else "",
)
async def test_a_bug_in_a_command_is_told_to_whoever_asked_and_logged_with_its_place(
    word: LongWord, kind: type, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for an answer that no one gives any more."""
    said: list[Any] = []

    async def say(one: Said) -> None:
        said.append(one)

    # Has none of what a command looks for: each look is a bug.
    view = SimpleNamespace(node=SimpleNamespace(weights=None), commands=0)
    commands = Commands(cast(View, view), say, fake_clock)
    commands.begin(word)
    async with asyncio.timeout(5):
        while view.commands:
            await asyncio.sleep(0)
    last = said[-1]
    assert (type(last), last.command_id) == (kind, "c")
    text = last.message if isinstance(last, Result) else last.error
    assert not getattr(last, "accepted", False)
    assert getattr(last, "end", True)
    assert "AttributeError" in text
    assert "agent's log" in text
    assert "Traceback" in caplog.text
