"""What every kind of test may ask for; see llmgw_kit.testing."""

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest

from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_schema.migrate import migrate

pytest_plugins = ["llmgw_kit.testing.fixtures"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def migrated_template(postgres_server: EmbeddedPostgres) -> str:
    """Name of a database with this release's schema, made once; `migrated_dsn` copies it."""
    name = "llmgw_template"
    postgres_server.execute(f"CREATE DATABASE {name}")

    async def up() -> None:
        connection = await asyncpg.connect(postgres_server.dsn(name), timeout=10)
        try:
            await migrate(connection)
        finally:
            await connection.close()

    # A thread of its own: the test that asks first may have its event loop set in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, up()).result(120)
    return name


@pytest.fixture
def migrated_dsn(postgres_server: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """A fresh database with this release's schema, dropped at the end; copying takes about 50 ms."""
    name = f"migrated_{next(_numbers)}"
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_template}")
    yield postgres_server.dsn(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
