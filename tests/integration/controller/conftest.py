"""Controllers as processes, stopped after each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_kit.testing.processes import Cage

from .controller_bench import Controllers


@pytest.fixture
def controllers(cage: Cage, tmp_path: Path) -> Iterator[Controllers]:
    """Starts controllers; what a test leaves running is stopped."""
    made = Controllers(cage, tmp_path)
    yield made
    made.stop_all()
