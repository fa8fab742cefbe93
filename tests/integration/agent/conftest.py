"""Agents of one test in its own folder, or one agent for the tests of a module."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from llmgw_kit.testing.processes import Cage
from tests.integration.agent.agent_bench import Agents, OneTest, controller, eventually

_numbers = itertools.count(1)


@pytest.fixture
def agents(cage: Cage, tmp_path: Path) -> Iterator[Agents]:
    """Starts agents; they and their engines end with the test, and whatever happens, with the cage."""
    made = Agents(cage, tmp_path)
    yield made
    made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(cage: Cage, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OneTest]:
    """An agent with a session, started once: a start costs more than most of what is tested."""
    agents = Agents(cage, tmp_path_factory.mktemp("agent"))
    async with controller() as leader:
        agents.start(leader.address)
        await eventually(lambda: leader.links, "a session")
        yield OneTest(leader, agents, "")
        agents.close()


@pytest_asyncio.fixture(loop_scope="module")
async def one(shared: OneTest) -> AsyncIterator[OneTest]:
    """A test's own corner of the shared agent, left as it was found."""
    leader = shared.leader
    made = OneTest(leader, shared.agents, f"t{next(_numbers)}-", len(leader.link.results))
    yield made
    await made.clear()
