"""One suite for the ledger, on the one in memory and on Postgres."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import asyncpg
import pytest

from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import connect_pool
from llmgw_kit.testing.clock import FakeClock
from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_kit.testing.processes import Cage
from llmgw_mirror.adapters.ledger_memory import Board, MemoryLedger
from llmgw_mirror.adapters.ledger_postgres import PostgresLedger
from llmgw_mirror.adapters.postgres_calls import connection
from llmgw_mirror.core.versions import (
    Failure,
    Moving,
    Proof,
    Receipt,
    Source,
    VersionView,
    WeightsState,
    view_file,
)
from llmgw_mirror.ports import Ledger
from llmgw_schema.migrate import migrate

TTL_S = 30.0
START = Moving(WeightsState.FETCHING, 0, None)
SHA = "ab" * 32


@dataclass
class Ledgers:
    """Two mirrors over one store, one over another, and time that can be made to pass."""

    one: Ledger
    two: Ledger
    elsewhere: Ledger
    pass_s: Callable[[float], Awaitable[None]]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


async def in_memory() -> Ledgers:
    clock, board = FakeClock(), Board()
    return Ledgers(
        MemoryLedger(holder="one", clock=clock, board=board),
        MemoryLedger(holder="two", clock=clock, board=board),
        MemoryLedger(holder="one", clock=clock, board=Board()),
        clock.advance,
    )


async def in_postgres(dsn: str) -> Ledgers:
    stack = AsyncExitStack()
    pool = await connect_pool(dsn, application="test", max_size=4)
    stack.push_async_callback(pool.close)

    async def pass_s(seconds: float) -> None:
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
        await connection.execute(
            "UPDATE weights_leases SET expires_at = expires_at - make_interval(secs => $1)", seconds
        )
        await connection.close()

    return Ledgers(
        PostgresLedger(pool, store_id="s1", holder="one"),
        PostgresLedger(pool, store_id="s1", holder="two"),
        PostgresLedger(pool, store_id="s2", holder="one"),
        pass_s,
        stack,
    )


@pytest.fixture(params=["memory", "postgres"])
async def ledgers(request: pytest.FixtureRequest) -> AsyncIterator[Ledgers]:
    if request.param == "memory":
        made = await in_memory()
    else:
        made = await in_postgres(request.getfixturevalue("migrated_dsn"))
    async with made.stack:
        yield made


async def test_one_holder_a_key(ledgers: Ledgers) -> None:
    lease = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert lease is not None
    assert await ledgers.two.acquire("k", ttl_s=TTL_S) is None
    assert await ledgers.two.acquire("other", ttl_s=TTL_S) is not None
    assert await ledgers.elsewhere.acquire("k", ttl_s=TTL_S) is not None


async def test_a_lease_given_up_is_free_at_once(ledgers: Ledgers) -> None:
    lease = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert lease is not None
    await ledgers.one.release(lease)
    later = await ledgers.two.acquire("k", ttl_s=TTL_S)
    assert later is not None
    assert later.token > lease.token


async def test_a_lease_runs_out_and_the_next_token_is_higher(ledgers: Ledgers) -> None:
    old = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert old is not None
    await ledgers.pass_s(TTL_S - 5)
    assert await ledgers.two.acquire("k", ttl_s=TTL_S) is None
    await ledgers.pass_s(6)
    new = await ledgers.two.acquire("k", ttl_s=TTL_S)
    assert new is not None
    assert new.token > old.token
    # The old holder has lost it, and cannot harm the new one's.
    assert await ledgers.one.renew(old, ttl_s=TTL_S, moving=START) is False
    await ledgers.one.release(old)
    assert await ledgers.two.renew(new, ttl_s=TTL_S, moving=START) is True


async def test_renewing_extends(ledgers: Ledgers) -> None:
    lease = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert lease is not None
    for _ in range(3):
        await ledgers.pass_s(TTL_S - 5)
        assert await ledgers.one.renew(lease, ttl_s=TTL_S, moving=START) is True
    assert await ledgers.two.acquire("k", ttl_s=TTL_S) is None


async def test_one_that_ran_out_is_renewed_if_nobody_took_it(ledgers: Ledgers) -> None:
    lease = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert lease is not None
    await ledgers.pass_s(TTL_S * 2)
    assert await ledgers.one.renew(lease, ttl_s=TTL_S, moving=START) is True
    assert await ledgers.two.acquire("k", ttl_s=TTL_S) is None


async def test_a_grant_whose_answer_was_lost_is_granted_again(ledgers: Ledgers) -> None:
    lost = await ledgers.one.acquire("k", ttl_s=TTL_S)
    again = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert lost is not None
    assert again is not None
    assert again.token > lost.token
    assert await ledgers.one.renew(lost, ttl_s=TTL_S, moving=START) is False


async def test_who_is_how_far(ledgers: Ledgers) -> None:
    lease = await ledgers.one.acquire("k", ttl_s=TTL_S)
    assert lease is not None
    await ledgers.one.renew(lease, ttl_s=TTL_S, moving=Moving(WeightsState.VERIFYING, 70, 100, 5.0, 6.0))
    live = await ledgers.two.live()
    assert {key: view.holder for key, view in live.items()} == {"k": "one"}
    # Rate and ETA are each reader's own to compute.
    moving = live["k"].moving
    assert (moving.state, moving.received_bytes, moving.total_bytes) == (WeightsState.VERIFYING, 70, 100)
    assert await ledgers.elsewhere.live() == {}
    await ledgers.pass_s(TTL_S + 1)
    assert await ledgers.two.live() == {}


def version(*files: tuple[str, WeightsState], name: str = "v1") -> VersionView:
    made = []
    for path, state in files:
        receipt = Receipt(SHA, 10, Proof.SHA256, at=1.0) if state is WeightsState.PRESENT else None
        failure = Failure("broken", 1.0) if state is WeightsState.FAILED else None
        moving = Moving(state, 3, 10) if state in (WeightsState.FETCHING, WeightsState.VERIFYING) else None
        source = Source(path, f"https://h/{path}", SHA, 10)
        made.append(view_file(source, receipt=receipt, failure=failure, moving=moving))
    return VersionView("org/m", name, 1_700_000_000.0, tuple(made))


async def test_what_is_recorded_is_what_was_told_last(ledgers: Ledgers) -> None:
    states = list(zip("abcde", WeightsState, strict=True))
    await ledgers.one.record(version(*states))
    await ledgers.one.record(version(*states))
    (seen,) = await ledgers.two.recorded()
    assert (seen.model, seen.version) == ("org/m", "v1")
    assert [(file.path, file.state) for file in seen.files] == states
    assert [file.error for file in seen.files] == ["broken", None, None, None, None]
    assert [file.size_bytes for file in seen.files] == [None, None, None, None, 10]
    assert [file.sha256 for file in seen.files] == [None, None, None, None, SHA]
    await ledgers.two.record(version(("a", WeightsState.PRESENT)))
    (seen,) = await ledgers.one.recorded()
    assert [(file.path, file.state, file.error) for file in seen.files] == [("a", WeightsState.PRESENT, None)]
    assert await ledgers.elsewhere.recorded() == []


async def test_a_version_made_anew_is_recorded_as_it_is_now(migrated_dsn: str) -> None:
    """Removed and asked for again between two passes: in the same states, from elsewhere. Not of the memory
    ledger, which keeps neither times nor URLs."""
    ledgers = await in_postgres(migrated_dsn)
    async with ledgers.stack:
        old = version(("a", WeightsState.PRESENT))
        await ledgers.one.record(old)
        source = Source("a", "https://elsewhere/b", "cd" * 32, 11, "ef" * 20, companion=True)
        file = replace(old.files[0], source=source)
        await ledgers.one.record(replace(old, created_at=old.created_at + 60, files=(file,)))
        link: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(migrated_dsn)
        row = await link.fetchrow(
            "SELECT url, expected_sha256, expected_bytes, expected_git_id, companion FROM weights_files"
        )
        made_at = await link.fetchval("SELECT extract(epoch FROM created_at)::float8 FROM weights_versions")
        await link.close()
    assert row is not None
    assert tuple(row) == (source.url, source.sha256, source.size_bytes, source.git_id, True)
    assert made_at == old.created_at + 60


async def test_forgetting(ledgers: Ledgers) -> None:
    for name in ("v1", "v2"):
        await ledgers.one.record(version(("a", WeightsState.PRESENT), name=name))
    await ledgers.one.forget("org/m", "v1")
    await ledgers.one.forget("org/m", "never was")
    assert [seen.version for seen in await ledgers.one.recorded()] == ["v2"]


async def test_a_silent_postgres_is_unavailable_and_then_is_not(
    cage: Cage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Not of the memory ledger: it cannot be away."""
    server = EmbeddedPostgres(cage, tmp_path_factory.mktemp("own-postgres"))
    async with server:
        connection = await asyncpg.connect(server.dsn())
        await migrate(connection)
        await connection.close()
        ledgers = await in_postgres(server.dsn())
        async with ledgers.stack:
            lease = await ledgers.one.acquire("k", ttl_s=TTL_S)
            assert lease is not None
            server.kill()
            with pytest.raises(Unavailable, match="Postgres does not answer"):
                await ledgers.one.renew(lease, ttl_s=TTL_S, moving=START)
            await server.restart()
            assert await ledgers.one.renew(lease, ttl_s=TTL_S, moving=START) is True


@pytest.mark.parametrize(
    ("statement", "bug"),
    [
        ("SELECT nonsense FROM weights_leases", asyncpg.UndefinedColumnError),
        ("SELECT * FROM weights_nonsense", asyncpg.UndefinedTableError),
        ("SELEC 1", asyncpg.PostgresSyntaxError),
        ("SELECT 1 / 0", asyncpg.DivisionByZeroError),
        (
            "INSERT INTO weights_history (store_id, kind, model, version, text) "
            "VALUES ('s', 'nonsense', 'm', 'v', '')",
            asyncpg.CheckViolationError,
        ),
    ],
)
async def test_a_statement_that_is_wrong_is_a_bug_and_not_a_silent_postgres(
    migrated_dsn: str, statement: str, bug: type[Exception]
) -> None:
    """Tried again for ever it would stay wrong, and be told as the database's fault."""
    pool = await connect_pool(migrated_dsn, application="test", max_size=1)
    try:
        with pytest.raises(bug):
            async with connection(pool) as link:
                await link.execute(statement)
    finally:
        await pool.close()


async def test_a_right_that_is_missing_is_told_as_that(migrated_dsn: str) -> None:
    pool = await connect_pool(migrated_dsn, application="test", max_size=1)
    try:
        with pytest.raises(Unavailable, match="Postgres refuses: permission denied for table weights_leases"):
            async with connection(pool) as link, link.transaction():
                await link.execute("CREATE ROLE llmgw_nobody")
                await link.execute("SET LOCAL ROLE llmgw_nobody")
                await link.execute("SELECT * FROM weights_leases")
    finally:
        await pool.close()
