"""What the mirror's integration tests share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .hub_served import Served, serving
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


@pytest.fixture
async def served(hub: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """A mirror that listens, for clients of the Hub."""
    async with serving(tmp_path, hub) as made:
        yield made
