"""What only a real database can show: locks between a leader's write and a take-over."""

import asyncio
import time
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from llmgw_controller.adapters.lease_postgres import (
    CUT_AFTER_S,
    LEASE_NAME,
    STATEMENT_TIMEOUT_S,
    PostgresLease,
)
from llmgw_controller.adapters.store_postgres import FENCE, PostgresStore
from llmgw_controller.core.plan import PutEvent, Severity
from llmgw_controller.ports import Fenced
from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import connect_one, connect_pool
from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_kit.testing.processes import Cage
from llmgw_schema.migrate import migrate

NOTE = PutEvent(1.0, "kind", "subject", "text", Severity.INFO)


async def test_a_leader_frozen_inside_a_write_delays_the_next_one_a_little_and_writes_nothing(
    migrated_dsn: str,
) -> None:
    first, second = PostgresLease(migrated_dsn), PostgresLease(migrated_dsn)
    old = await first.acquire(holder="a", address="a:1", ttl_s=0.5)
    assert old is not None
    # As the store's connection would be, frozen after its first statements and before its commit.
    frozen = await connect_one(migrated_dsn, application="frozen")
    await frozen.execute("BEGIN")
    assert await frozen.fetchrow(FENCE, LEASE_NAME, old.term) is not None
    await frozen.execute(
        "INSERT INTO events (at, term, kind, subject, text, severity) "
        "VALUES (now(), $1, 'k', 's', 't', 'info')",
        old.term,
    )
    began = time.monotonic()
    new = None
    while new is None:
        assert time.monotonic() - began < 10, "nobody can take over"
        new = await second.acquire(holder="b", address="b:1", ttl_s=30)
        await asyncio.sleep(0.05)
    took_s = time.monotonic() - began
    # The lease's rest, and at most the 2 s after which Postgres cuts who idles inside a transaction.
    # The rest above that is slack for a busy machine.
    assert 0.3 < took_s < 0.5 + 2.0 + 5.0
    assert new.term > old.term
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await frozen.execute("COMMIT")
    check = await connect_one(migrated_dsn, application="check")
    assert await check.fetchval("SELECT count(*) FROM events") == 0
    await check.close()
    await first.close()
    await second.close()


async def test_a_leader_frozen_between_two_messages_of_a_statement_is_cut_too(migrated_dsn: str) -> None:
    """The driver asks the server to prepare a statement, and to run it when that was answered. Between the
    two the session counts as active, and the limit on idling inside a transaction does not see it: seen when
    a leader was frozen that had not used all its statements yet, and nobody could follow it."""
    first, second = PostgresLease(migrated_dsn), PostgresLease(migrated_dsn)
    old = await first.acquire(holder="a", address="a:1", ttl_s=0.5)
    assert old is not None
    frozen = await connect_one(migrated_dsn, application="llmgw-controller")
    await frozen.execute("BEGIN")
    assert await frozen.fetchrow(FENCE, LEASE_NAME, old.term) is not None
    await frozen.prepare("INSERT INTO group_epochs (model, highest) VALUES ($1, $2)")
    began = time.monotonic()
    new = None
    while new is None:
        assert time.monotonic() - began < 10, "nobody can take over"
        new = await second.acquire(holder="b", address="b:1", ttl_s=30)
        await asyncio.sleep(0.05)
    took_s = time.monotonic() - began
    assert took_s < 0.5 + CUT_AFTER_S + 5.0
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await frozen.execute("COMMIT")
    await first.close()
    await second.close()


async def test_of_two_that_wait_for_a_frozen_leader_neither_cuts_the_other(migrated_dsn: str) -> None:
    first = PostgresLease(migrated_dsn)
    old = await first.acquire(holder="a", address="a:1", ttl_s=0.3)
    assert old is not None
    frozen = await connect_one(migrated_dsn, application="llmgw-controller")
    await frozen.execute("BEGIN")
    assert await frozen.fetchrow(FENCE, LEASE_NAME, old.term) is not None
    await frozen.prepare("INSERT INTO group_epochs (model, highest) VALUES ($1, $2)")
    await asyncio.sleep(0.4)
    waiting = [PostgresLease(migrated_dsn) for _ in range(2)]
    got = await asyncio.gather(
        *(one.acquire(holder=f"b{n}", address="b:1", ttl_s=30) for n, one in enumerate(waiting))
    )
    assert sorted(lease is None for lease in got) == [False, True]
    for one in (first, *waiting):
        await one.close()
    frozen.terminate()


class LosesAnswers(PostgresLease):
    """The answer to its next acquiring statement is lost on the way back; the statement itself lands."""

    lost = False

    async def _row(
        self, sql: str, *values: object, timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> asyncpg.Record | None:
        row = await super()._row(sql, *values, timeout_s=timeout_s)
        if "INSERT INTO controller_lease" in sql and not self.lost:
            self.lost = True
            raise TimeoutError
        return row


async def test_a_lease_whose_answer_was_lost_is_taken_up_at_once(migrated_dsn: str) -> None:
    lease, other = LosesAnswers(migrated_dsn), PostgresLease(migrated_dsn)
    with pytest.raises(Unavailable):
        await lease.acquire(holder="a", address="a:1", ttl_s=30)
    view = await lease.read()
    assert view is not None
    # Somebody of the same name and address, by mistake: it was not that one's attempt.
    assert await other.acquire(holder="a", address="a:1", ttl_s=30) is None
    got = await lease.acquire(holder="a", address="a:1", ttl_s=30)
    assert got is not None
    assert (got.term, got.holder) == (view.term, "a")
    assert await lease.renew(got) is not None
    await lease.close()
    await other.close()


async def test_an_attempt_that_was_lost_and_failed_is_no_lease(migrated_dsn: str) -> None:
    lease, other = LosesAnswers(migrated_dsn), PostgresLease(migrated_dsn)
    with pytest.raises(Unavailable):
        await lease.acquire(holder="a", address="a:1", ttl_s=0.2)
    await asyncio.sleep(0.3)
    held = await other.acquire(holder="b", address="b:1", ttl_s=30)
    assert held is not None
    assert await lease.acquire(holder="a", address="a:1", ttl_s=30) is None
    view = await lease.read()
    assert view is not None
    assert (view.holder, view.term) == ("b", held.term)
    await lease.close()
    await other.close()


async def test_the_lock_of_a_frozen_leader_is_cut_behind_a_pooler_too(migrated_dsn: str) -> None:
    """A pooler hands out sessions that nobody has prepared: the fence must bring its own limit along."""
    lease = PostgresLease(migrated_dsn)
    held = await lease.acquire(holder="a", address="a:1", ttl_s=30)
    assert held is not None
    pooled: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(migrated_dsn, timeout=10)
    async with pooled.transaction():
        assert await pooled.fetchrow(FENCE, LEASE_NAME, held.term) is not None
        assert await pooled.fetchval("SHOW idle_in_transaction_session_timeout") == "2s"
    # Only for that transaction: the session is somebody else's next.
    assert await pooled.fetchval("SHOW idle_in_transaction_session_timeout") == "0"
    await pooled.close()
    await lease.close()


async def test_a_take_over_waits_for_a_write_that_is_under_way(migrated_dsn: str) -> None:
    """The write that passed the fence lands in its own term, before the next one begins."""
    lease = PostgresLease(migrated_dsn)
    old = await lease.acquire(holder="a", address="a:1", ttl_s=0.2)
    assert old is not None
    writer = await connect_one(migrated_dsn, application="writer")
    await writer.execute("BEGIN")
    assert await writer.fetchrow(FENCE, LEASE_NAME, old.term) is not None
    await asyncio.sleep(0.3)
    taking = asyncio.create_task(lease.acquire(holder="b", address="b:1", ttl_s=30))
    await asyncio.sleep(0.2)
    assert not taking.done()
    await writer.execute("COMMIT")
    new = await taking
    assert new is not None
    assert new.term == old.term + 1
    await writer.close()
    await lease.close()


async def test_renewing_does_not_wait_for_our_own_writes(migrated_dsn: str) -> None:
    lease = PostgresLease(migrated_dsn)
    held = await lease.acquire(holder="a", address="a:1", ttl_s=30)
    assert held is not None
    writer = await connect_one(migrated_dsn, application="writer")
    async with writer.transaction():
        assert await writer.fetchrow(FENCE, LEASE_NAME, held.term) is not None
        assert await asyncio.wait_for(lease.renew(held), 1.0) is not None
    await writer.close()
    await lease.close()


async def test_two_at_once_get_one_lease(migrated_dsn: str) -> None:
    leases = [PostgresLease(migrated_dsn) for _ in range(8)]
    eraser = await connect_one(migrated_dsn, application="eraser")
    for round_ in range(120):
        if round_ % 6:
            # The very first lease of a cluster, which is another path than taking over an expired one.
            await eraser.execute("DELETE FROM controller_lease")
        found = await asyncio.gather(
            *(lease.acquire(holder=f"h{n}", address=f"h{n}:1", ttl_s=30) for n, lease in enumerate(leases))
        )
        winners = [lease for lease in found if lease is not None]
        assert len(winners) == 1
        await leases[0].release(winners[0])
    await eraser.close()
    for lease in leases:
        await lease.close()


async def test_a_dead_server_is_told_as_unavailable_and_all_come_back(cage: Cage, tmp_path: Path) -> None:
    async with EmbeddedPostgres(cage, tmp_path / "pg") as server:
        connection = await connect_one(server.dsn(), application="test")
        await migrate(connection)
        await connection.close()
        lease = PostgresLease(server.dsn())
        store = PostgresStore(await connect_pool(server.dsn(), application="test", max_size=2))
        held = await lease.acquire(holder="a", address="a:1", ttl_s=60)
        assert held is not None
        await store.commit(held.term, [NOTE])
        await asyncio.to_thread(server.kill)
        for attempt in (
            store.load,
            partial(store.commit, held.term, [NOTE]),
            partial(lease.renew, held),
            lease.read,
        ):
            with pytest.raises(Unavailable):
                await attempt()
        await server.restart()
        # The lease is a row: it survived the server, and so did the term.
        assert await lease.renew(held) is not None
        await store.commit(held.term, [NOTE])
        assert len(await store.events(since=None, subject=None, limit=9)) == 2
        await lease.release(held)
        with pytest.raises(Fenced):
            await store.commit(held.term, [NOTE])
        await store.close()
        await lease.close()
