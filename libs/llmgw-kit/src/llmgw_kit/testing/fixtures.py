"""Pytest fixtures: real Postgres and Redis, one of each a test process, clean for every test.

A conftest takes them over with `pytest_plugins = ["llmgw_kit.testing.fixtures"]`, and overrides
`postgres_template` when its tests want a schema in their databases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.testing.embedded import EmbeddedPostgres, EmbeddedRedis
from llmgw_kit.testing.processes import Cage

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cage() -> Iterator[Cage]:
    """Holds every process of this test session; nothing in it outlives pytest, however that ends."""
    with Cage() as held:
        yield held


@pytest.fixture(scope="session")
def postgres_server(cage: Cage, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedPostgres:
    """One server a test process; tests that break it start one of their own instead."""
    server = EmbeddedPostgres(cage, tmp_path_factory.mktemp("postgres"))
    server.start_now()
    return server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: EmbeddedPostgres) -> str:
    """Name of the database each test's own is copied from. Empty here; overridden to carry the schema."""
    return "template1"


@pytest.fixture
def postgres_dsn(postgres_server: EmbeddedPostgres, postgres_template: str) -> Iterator[str]:
    """A fresh database, dropped at the end together with the connections the test left open."""
    name = f"test_{next(_numbers)}"
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {postgres_template}")
    yield postgres_server.dsn(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def redis_server(cage: Cage, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedRedis:
    """One server a test process; tests that break it start one of their own instead."""
    server = EmbeddedRedis(cage, tmp_path_factory.mktemp("redis"))
    server.start_now()
    return server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The server with nothing in it."""
    reply = redis_server.command("FLUSHALL")
    assert reply == "+OK\r\n", f"Redis did not flush: {reply!r}"
    return redis_server.url


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """Where the processes of one test write what they say."""
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.fixture
def fake_clock() -> FakeClock:
    """Time stands still until the test moves it."""
    return FakeClock()
