"""A whole cluster of real processes on free ports, for end-to-end tests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.testing.processes import Cage
from llmgw_lab import models
from llmgw_lab.checks import free_layout
from llmgw_lab.leftovers import MARK
from llmgw_lab.suite import Suite

#: Tokens and pace of the slow stream: long enough (10 s) to kill something in its middle.
SLOW_TOKENS = 100
SLOW_INTERVAL_S = 0.1


def catalog(folder: Path) -> list[dict[str, Any]]:
    """A real engine twice (chat, embeddings) and the scripted one twice (quick, slow); all cold."""
    mark = {MARK: str(folder)}
    tiny = models.tiny_model(folder / "models")
    chat = models.catalog_entry(tiny, env=mark) | {"aliases": ["Tiny/Llama-Random"]}
    embed = models.catalog_entry(tiny, env=mark) | {"name": "tiny-embed"}
    embed["profiles"] = [embed["profiles"][0] | {"args": ["--threads", "1", "--embeddings"]}]
    slow = ("--tokens", str(SLOW_TOKENS), "--token-interval-s", str(SLOW_INTERVAL_S))
    broken = models.scripted_entry("broken", "--exit-at-load", "3", env=mark)
    # The others fill the small GPUs; this one must fail by itself, not for want of room.
    broken["profiles"] = [broken["profiles"][0] | {"gpu_class": "LAB-48G"}]
    return [
        chat,
        embed,
        models.scripted_entry("quick", env=mark),
        models.scripted_entry("slow", *slow, env=mark),
        broken | {"hold_timeout_s": 5.0},
    ]


def running_suite(folder: Path) -> Iterator[Suite]:
    """Everything up and ready; everything gone after."""
    with Cage() as cage:
        suite = Suite(cage, free_layout(folder), models=catalog(folder))

        async def up() -> None:
            await suite.start_servers()
            await suite.start(*suite.parts)
            await suite.until_ready(*suite.parts)
            await suite.until_heard(*suite.agents)

        asyncio.run(up())
        yield suite
        asyncio.run(suite.close())


@pytest.fixture(scope="module")
def shared_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """One cluster for the tests of a module that break nothing."""
    yield from running_suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture
def own_suite(tmp_path: Path) -> Iterator[Suite]:
    """A cluster for one test that breaks something."""
    yield from running_suite(tmp_path)
