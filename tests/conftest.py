"""What every kind of test may ask for; see llmgw_kit.testing."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import hypothesis
import pytest

from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_schema.migrate import migrate

pytest_plugins = ["llmgw_kit.testing.fixtures"]

# No deadline: these machines are shared. The gate asks the same cases each time, so that what it refuses
# is the change before it; everybody else goes on searching.
hypothesis.settings.register_profile("everybody", deadline=None)
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
hypothesis.settings.load_profile("gate" if os.environ.get("CI") == "true" else "everybody")

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
