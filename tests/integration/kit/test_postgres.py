"""Postgres at start-up and under failure: what is retried, what is told at once, what is renewed."""

import asyncio

import asyncpg
import pytest

from llmgw_kit.errors import StartupError
from llmgw_kit.postgres import connect_patiently, connect_pool

DEAD = "postgresql://u:hush@127.0.0.1:{port}/d"


async def patiently(dsn, clock, **kwargs):
    return await connect_patiently(dsn, application="test", max_size=2, clock=clock, **kwargs)


async def test_a_dead_server_is_retried_with_backoff_said_each_time_and_given_up(
    fake_clock, caplog, unused_tcp_port
):
    waiting = asyncio.ensure_future(patiently(DEAD.format(port=unused_tcp_port), fake_clock))
    began = fake_clock.monotonic_s()
    while not waiting.done():
        # A refused connect takes real turns of the loop, so wait for the sleep, then let time pass.
        while not fake_clock.sleepers and not waiting.done():
            await asyncio.sleep(0.001)
        await fake_clock.advance(1.0)
    with pytest.raises(StartupError) as refused:
        await waiting
    assert 50 <= fake_clock.monotonic_s() - began <= 61
    assert "did not answer for" in refused.value.text
    assert "leave dsn out" in refused.value.next_steps[0]
    warnings = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert len(warnings) >= 8
    assert not any("hush" in text for text in [*warnings, refused.value.text])


def with_login(dsn: str) -> str:
    return f"postgresql://nobody_here:x@{dsn.rpartition('@')[2]}"


def with_database(dsn: str) -> str:
    return dsn.rpartition("/")[0] + "/no_such_database"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_login, "refuses the login"),
        (with_database, "no_such_database"),
        (lambda dsn: "mysql://h/d", "not a Postgres address"),
    ],
    ids=["login", "database", "scheme"],
)
async def test_what_waiting_cannot_mend_is_told_at_once(fake_clock, postgres_dsn, change, said):
    with pytest.raises(StartupError, match=said):
        await asyncio.wait_for(patiently(change(postgres_dsn), fake_clock), 10)


@pytest.mark.parametrize("password", ["hu/sh", "hu//sh", "hu?sh", "hu#sh", "hu[sh"])
async def test_a_password_that_breaks_the_address_is_not_repeated(fake_clock, password):
    with pytest.raises(StartupError) as refused:
        await patiently(f"postgresql://u:{password}@127.0.0.1:1/d", fake_clock)
    said = "\n".join(refused.value.lines())
    assert "percent-encode" in said
    assert "hu" not in said
    assert "sh@" not in said


async def test_a_node_turned_read_only_renews_the_pool(postgres_dsn, postgres_server):
    """Writes on pooled connections fail with 25006 although reads are fine: the pool must let go of them."""
    pool = await connect_pool(postgres_dsn, application="test", max_size=1)
    try:
        async with pool.connection() as connection:
            await connection.execute("CREATE TABLE t (x int)")
            before = await connection.fetchval("SELECT pg_backend_pid()")
            await connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            async with pool.connection() as connection:
                await connection.execute("SET default_transaction_read_only = on")
                await connection.execute("INSERT INTO t VALUES (1)")
        async with pool.connection() as connection:
            assert await connection.fetchval("SELECT pg_backend_pid()") != before
            await connection.execute("INSERT INTO t VALUES (1)")
    finally:
        await pool.close()
