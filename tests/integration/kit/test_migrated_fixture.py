"""The fixture that hands out migrated databases: each test its own, schema and all."""

import asyncpg
import pytest


@pytest.mark.parametrize("turn", [1, 2])
async def test_a_migrated_database_of_ones_own(migrated_dsn: str, turn: int) -> None:
    connection = await asyncpg.connect(migrated_dsn, timeout=10)
    assert await connection.fetchval("SELECT count(*) FROM schema_migrations") >= 1
    assert await connection.fetchval("SELECT count(*) FROM controller_lease WHERE term > 1000") == 0
    await connection.execute(f"CREATE TABLE of_turn_{turn} ()")
    assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'of_turn_%'") == 1
    await connection.close()
