"""The truth in Postgres: one consistent reading, and writes that carry the lease's term.

Loading is in `rows_postgres.py`, each kind of change in `changes_postgres.py`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import asyncpg

from llmgw_controller.adapters import benchmarks_postgres, changes_postgres, rows_postgres
from llmgw_controller.adapters.history_postgres import PostgresHistory
from llmgw_controller.adapters.keys_postgres import PostgresApiKeys
from llmgw_controller.adapters.lease_postgres import LEASE_NAME
from llmgw_controller.adapters.postgres_errors import told
from llmgw_controller.core.benchmarks import BenchmarkRun
from llmgw_controller.core.plan import Change, Severity
from llmgw_controller.core.rows import EvictionRow, Stored
from llmgw_controller.core.storing import as_storable
from llmgw_controller.ports import PART, ClaimTaken, EventRow, Fenced
from llmgw_kit.ids import LeaseTerm, ModelId
from llmgw_kit.postgres import IDLE_IN_TRANSACTION_S, Postgres

log = logging.getLogger(__name__)

#: First statement of every write. The lock is shared by our own transactions and by renewals, but a take-over
#: changes the key column `term` and so waits for it, or has already won, and then no row is found. That the
#: server cuts the lock of a frozen leader is set here too: a pooler passes no settings of a session on.
FENCE = f"""
SELECT set_config('idle_in_transaction_session_timeout', '{int(IDLE_IN_TRANSACTION_S * 1000)}', true)
  FROM controller_lease WHERE name = $1 AND term = $2 AND expires_at > clock_timestamp() FOR KEY SHARE
"""

_EVENT = "event_id, extract(epoch FROM at)::float8 AS at, term, kind, subject, text, severity"

# The parts of "m" are "m/" or "m:" and a number: two ranges of names, for "0" follows "/" and ";" follows ":"
# byte by byte. All that is about one subject is gathered before it is cut: whoever looks for its newest by
# walking back through the log reads all of it where the subject is rare.
_ABOUT = f"""
WITH about AS MATERIALIZED (
    SELECT * FROM events
     WHERE subject COLLATE "C" = $1
        OR (subject COLLATE "C" >= $1 || '/' AND subject COLLATE "C" < $1 || '0'
            OR subject COLLATE "C" >= $1 || ':' AND subject COLLATE "C" < $1 || ';')
           AND substr(subject, length($1) + 1) ~ '^{PART}$')
"""

_LOG = "WITH about AS NOT MATERIALIZED (SELECT * FROM events WHERE $1::text IS NULL)"

_NEWEST = f"""
SELECT {_EVENT} FROM about
 WHERE ($2::float8 IS NULL OR at >= to_timestamp($2)) AND ($3::float8 IS NULL OR at <= to_timestamp($3))
 ORDER BY event_id DESC LIMIT $4
"""

_FIRST_EVENT = "SELECT min(event_id) FROM events WHERE at >= to_timestamp($1)"

_AFTER = f"SELECT {_EVENT} FROM about WHERE event_id > $2 ORDER BY event_id LIMIT $3"

#: Old events forgotten by one call.
PRUNED_AT_ONCE = 10_000

_PRUNE = """
DELETE FROM events WHERE event_id IN (
    SELECT event_id FROM events WHERE at < to_timestamp($1) ORDER BY at LIMIT $2)
RETURNING event_id
"""


class PostgresStore:
    """Store on a pool. Nothing here waits for anything but Postgres while a transaction is open."""

    def __init__(self, postgres: Postgres, *, lease_name: str = LEASE_NAME) -> None:
        self._postgres = postgres
        self._lease_name = lease_name
        self._history = PostgresHistory(postgres, self._writing)
        self._keys = PostgresApiKeys(postgres, self._writing)

    @property
    def keys(self) -> PostgresApiKeys:
        """As in the port."""
        return self._keys

    @property
    def history(self) -> PostgresHistory:
        """As in the port."""
        return self._history

    @property
    def kind(self) -> Literal["postgres", "memory"]:
        """Survives us."""
        return "postgres"

    async def clock(self) -> float | None:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                return float(
                    await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
                )

    async def load(self) -> Stored:
        """As in the port."""
        with told("answer"):
            async with (
                self._postgres.connection() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                found = await rows_postgres.read(connection)
        return await asyncio.to_thread(rows_postgres.stored_of, found)

    async def commit(self, term: LeaseTerm, changes: Sequence[Change]) -> None:
        """As in the port."""
        with told("commit"):
            try:
                async with self._writing(term, f"{len(changes)} changes not written") as connection:
                    for change in changes:
                        await changes_postgres.write(connection, term, as_storable(change))
            except asyncpg.UniqueViolationError as e:
                if e.table_name not in ("device_claims", "port_leases"):
                    raise
                raise ClaimTaken(f"another shard holds it: {e.detail}") from e
            except asyncpg.ForeignKeyViolationError as e:
                raise AssertionError(f"a plan forgets what still holds claims: {e.detail}") from e

    async def evictions(self, *, since: float | None, model: ModelId | None, limit: int) -> list[EvictionRow]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                return await rows_postgres.receipts(connection, since, model, limit)

    async def events(
        self, *, since: float | None, until: float | None = None, subject: str | None, limit: int
    ) -> list[EventRow]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                rows = await connection.fetch(_about(subject) + _NEWEST, subject, since, until, limit)
        return [_event(row) for row in rows]

    async def first_event(self, since: float) -> int | None:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                found = await connection.fetchval(_FIRST_EVENT, since)
        return int(found) if found is not None else None

    async def events_after(self, event_id: int, *, subject: str | None, limit: int) -> list[EventRow]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                rows = await connection.fetch(_about(subject) + _AFTER, subject, event_id, limit)
        return [_event(row) for row in rows]

    async def prune_events(self, term: LeaseTerm, *, before: float) -> int:
        """As in the port. A slice at a time, so that no statement takes long; the next call takes the
        next."""
        with told("forget old events"):
            async with self._writing(term, "no event forgotten") as connection:
                gone = await connection.fetch(_PRUNE, before, PRUNED_AT_ONCE)
        return len(gone)

    async def put_benchmark(self, term: LeaseTerm, run: BenchmarkRun) -> int:
        """As in the port."""
        with told("store a benchmark"):
            async with self._writing(term, "the run is not stored") as connection:
                return await benchmarks_postgres.put(connection, as_storable(run))

    async def benchmarks(self, model: str | None) -> list[BenchmarkRun]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                return await benchmarks_postgres.load(connection, model)

    @asynccontextmanager
    async def _writing(self, term: LeaseTerm, not_done: str) -> "AsyncIterator[changes_postgres.Connection]":
        """The one transaction that the leader may write in."""
        async with self._postgres.connection() as connection, connection.transaction():
            if await connection.fetchrow(FENCE, self._lease_name, term) is None:
                raise Fenced(f"term {term} holds the lease no longer; {not_done}")
            yield connection

    async def close(self) -> None:
        """Close the pool."""
        await self._postgres.close()


def _about(subject: str | None) -> str:
    """The events of a subject, or all of them, as `about`."""
    return _LOG if subject is None else _ABOUT


def _event(row: asyncpg.Record) -> EventRow:
    return EventRow(
        event_id=row["event_id"],
        at=row["at"],
        term=LeaseTerm(row["term"]),
        kind=row["kind"],
        subject=row["subject"],
        text=row["text"],
        severity=Severity(row["severity"]),
    )
