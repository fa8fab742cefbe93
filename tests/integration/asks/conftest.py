"""Nodes for one test, or for the tests of a module that break nothing."""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_kit.testing.processes import Cage
from tests.integration.agent.agent_bench import Agents
from tests.integration.asks.asks_bench import Node, model
from tests.integration.controller.controller_bench import Controllers

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Node]

FIRST_PORT, PORTS_EACH, RANGES = 20000, 20, 249
_numbers = itertools.count()


def starting(cage: Cage, folder: Path) -> Iterator[Start]:
    controllers, agents = Controllers(cage, folder), Agents(cage, folder)

    def start(*, models: list[dict[str, Any]] | None = None, count: int = 1, **settings: Any) -> Node:
        started = [
            controllers.start(models=[model()] if models is None else models, **settings)
            for _ in range(count)
        ]
        first = FIRST_PORT + PORTS_EACH * ((os.getpid() * 7 + next(_numbers)) % RANGES)
        node = Node(started, agents, f"{first}-{first + PORTS_EACH - 1}")
        node.start_agent()
        return node

    yield start
    agents.close()
    controllers.stop_all()


@pytest.fixture
def start_node(cage: Cage, tmp_path: Path) -> Iterator[Start]:
    """Starts a controller and an agent; a test's own."""
    yield from starting(cage, tmp_path)


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One for a module, its replica ready."""
    with Cage() as cage:
        for start in starting(cage, tmp_path_factory.mktemp("asks")):
            node = start(models=[model("tiny", "--tokens", "8", "--token-interval-s", "0.005")])
            asyncio.run(_up(node))
            yield node


async def _up(node: Node) -> None:
    await node.controller.until_ready()
    await node.until_ready()
