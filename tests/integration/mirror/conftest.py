"""What the mirror's integration tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .scripted import Upstream, upstream
from .world import World, world


@pytest.fixture
async def hub() -> AsyncIterator[Upstream]:
    """An upstream that serves well until told otherwise."""
    async with upstream() as made:
        yield made


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    """A mirror in this process, without Postgres."""
    async with world(tmp_path / "store") as made:
        yield made
