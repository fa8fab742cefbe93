"""Agents of one test, in its own folder."""

from pathlib import Path

import pytest

from llmgw_kit.testing.processes import Cage
from tests.integration.agent import agent_bench


@pytest.fixture
def agents(cage: Cage, tmp_path: Path) -> agent_bench.Agents:
    """Starts agents; the cage ends them and their engines with the test session."""
    return agent_bench.Agents(cage, tmp_path)
