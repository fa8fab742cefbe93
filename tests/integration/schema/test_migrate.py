"""Migrations on a real Postgres: once only, however many start; never backwards; never edited."""

import asyncio

import asyncpg
import pytest

from llmgw_kit.errors import StartupError
from llmgw_schema.migrate import Migration, migrate, migrate_at, shipped


@pytest.fixture
async def connect(postgres_dsn):
    opened = []

    async def one() -> asyncpg.Connection:
        opened.append(await asyncpg.connect(postgres_dsn, timeout=5))
        return opened[-1]

    yield one
    for connection in opened:
        await connection.close()


async def test_five_start_at_once_and_one_migrates(connect):
    connections = [await connect() for _ in range(5)]
    applied = await asyncio.gather(*(migrate(connection) for connection in connections))
    everything = [migration.number for migration in shipped()]
    assert sorted(applied) == [[], [], [], [], everything]
    assert await migrate(connections[0]) == []


async def test_a_failing_migration_leaves_nothing_behind(connect):
    connection = await connect()
    bad = [Migration(1, "bad", "CREATE TABLE half (x int); SELECT no_such_function();")]
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await migrate(connection, bad)
    assert await connection.fetchval("SELECT to_regclass('half')") is None
    # The lock was given back: another runner is not blocked.
    assert await migrate(await connect(), [Migration(1, "good", "CREATE TABLE whole (x int)")]) == [1]


async def test_an_older_release_refuses_a_newer_schema(connect):
    connection = await connect()
    both = [Migration(1, "a", "SELECT 1"), Migration(2, "b", "SELECT 2")]
    await migrate(connection, both)
    with pytest.raises(StartupError, match="schema is at 2, this release knows 1"):
        await migrate(connection, both[:1])


async def test_an_edited_migration_is_refused(connect):
    connection = await connect()
    await migrate(connection, [Migration(1, "a", "SELECT 1")])
    with pytest.raises(StartupError, match="0001 a was edited"):
        await migrate(connection, [Migration(1, "a", "SELECT 2")])


async def test_a_new_migration_below_the_newest_applied_is_refused_and_nothing_is_applied(connect):
    """A fresh database would apply it before the later ones, this one after them: two schemas."""
    connection = await connect()
    await migrate(connection, [Migration(1, "a", "SELECT 1"), Migration(3, "c", "SELECT 3")])
    late = [
        Migration(1, "a", "SELECT 1"),
        Migration(2, "b", "CREATE TABLE late (x int)"),
        Migration(3, "c", "SELECT 3"),
        Migration(4, "d", "CREATE TABLE later (x int)"),
    ]
    with pytest.raises(StartupError, match="0002 b is new here, but 0003 is applied already") as refused:
        await migrate(connection, late)
    assert "the next free number, 0005" in refused.value.next_steps[0]
    assert await connection.fetchval("SELECT max(number) FROM schema_migrations") == 3
    assert await connection.fetchval("SELECT coalesce(to_regclass('late'), to_regclass('later'))") is None
    # Where nothing was applied the order is as numbered.
    assert await migrate(connection, [late[0], late[2], late[3]]) == [4]


async def test_the_keys_forbid_double_booking(connect):
    """What every other guard falls back on: the second claim of a device or port is refused."""
    connection = await connect()
    await migrate(connection)
    await connection.execute(
        "INSERT INTO replicas VALUES ('m/1', 'm', 'p', 'h', 'configuration', 'serve', 'reserved', NULL, NULL,"
        " 1, 0, now(), now(), NULL, NULL, '{}')"
    )
    for shard in ("m/1.1.0", "m/1.1.1"):
        await connection.execute(
            "INSERT INTO shards VALUES ($1, 'm/1', 1, 'n', 0, '{g0}', '{\"http\": 20000}', false)", shard
        )
    await connection.execute("INSERT INTO device_claims VALUES ('n', 'g0', 'm/1.1.0', 1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("INSERT INTO device_claims VALUES ('n', 'g0', 'm/1.1.1', 1)")
    await connection.execute("INSERT INTO port_leases VALUES ('n', 20000, 'm/1.1.0', NULL, 1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("INSERT INTO port_leases VALUES ('n', 20000, 'm/1.1.1', NULL, 1)")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await connection.execute("DELETE FROM replicas WHERE replica_id = 'm/1'")


async def test_a_login_without_the_right_to_create_is_told(postgres_dsn, postgres_server, fake_clock):
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute("CREATE ROLE reader LOGIN PASSWORD 'reader'")
    try:
        dsn = f"postgresql://reader:reader@{postgres_dsn.rpartition('@')[2]}"
        with pytest.raises(StartupError, match="cannot be brought up to date: permission denied") as refused:
            await migrate_at(dsn, application="test", clock=fake_clock)
        assert database in refused.value.text
        assert "right to create tables" in refused.value.next_steps[0]
    finally:
        postgres_server.execute("DROP ROLE reader")
