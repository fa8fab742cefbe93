"""The lease as one row of Postgres, whose clock decides when it has run out (architecture.md, section 5)."""

import asyncio
import logging
import secrets
from contextlib import suppress

import asyncpg

from llmgw_controller.adapters.postgres_errors import passes_with_time, told
from llmgw_controller.ports import Lease, LeaseView
from llmgw_kit.ids import LeaseTerm
from llmgw_kit.postgres import connect_one

log = logging.getLogger(__name__)

LEASE_NAME = "controller"
#: Of the sessions that renew or want the lease, for Postgres.
APPLICATION = "llmgw-controller-lease"

#: A renewal that takes longer is given up and tried again on a new connection: the holder's time runs.
STATEMENT_TIMEOUT_S = 2.0
#: A take-over waits for the row lock of a frozen leader, which the server cuts after 2 s.
ACQUIRE_TIMEOUT_S = 4.5
#: A write that is alive is over long before; the leader has not acted for the margin already.
CUT_AFTER_S = 1.0

_READ = """
SELECT holder, address, term, extract(epoch FROM expires_at - clock_timestamp())::float8 AS expires_in_s
  FROM controller_lease WHERE name = $1
"""
# The term is part of a unique key, so this update waits for every transaction that holds the row's KEY
# SHARE lock: the old leader's writes land before the new term begins, or not at all. The time is read after
# that wait.
_ACQUIRE = """
INSERT INTO controller_lease AS held (name, holder, address, term, expires_at, token)
VALUES ($1, $2, $3, $5::bigint + 1, clock_timestamp() + $4 * interval '1 second', $6)
ON CONFLICT (name) DO UPDATE
   SET holder = excluded.holder, address = excluded.address, term = greatest(held.term, $5) + 1,
       expires_at = clock_timestamp() + $4 * interval '1 second', token = excluded.token
 WHERE held.expires_at <= clock_timestamp()
RETURNING term, extract(epoch FROM clock_timestamp())::float8 AS now
"""
_RESUME = """
UPDATE controller_lease SET expires_at = clock_timestamp() + $3 * interval '1 second'
 WHERE name = $1 AND token = $2 AND expires_at > clock_timestamp()
RETURNING term, extract(epoch FROM clock_timestamp())::float8 AS now
"""
# Another candidate that waits for the same row is no obstacle, and is left alone.
_CUT = """
SELECT pid, pg_terminate_backend(pid) AS cut FROM pg_stat_activity
 WHERE pid = ANY(pg_blocking_pids($1)) AND application_name IS DISTINCT FROM $2
"""
_RENEW = """
UPDATE controller_lease SET expires_at = clock_timestamp() + $4 * interval '1 second'
 WHERE name = $1 AND holder = $2 AND term = $3 AND expires_at > clock_timestamp()
RETURNING extract(epoch FROM clock_timestamp())::float8
"""
_RELEASE = """
UPDATE controller_lease SET expires_at = clock_timestamp()
 WHERE name = $1 AND holder = $2 AND term = $3 AND expires_at > clock_timestamp()
"""


class PostgresLease:
    """LeaseStore on a connection of its own: work that fills the pool must not delay a renewal.

    Every method raises Unavailable when Postgres does not answer in time."""

    def __init__(self, dsn: str, *, name: str = LEASE_NAME) -> None:
        self._dsn = dsn
        self._name = name
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._one_at_a_time = asyncio.Lock()
        #: Of an attempt to acquire whose answer never came.
        self._unsure: str | None = None

    async def acquire(self, *, holder: str, address: str, ttl_s: float, above: int = 0) -> Lease | None:
        """As in the port. Looks before it tries, so that a standby does not lock the leader's row.

        An attempt whose answer was lost may have succeeded: it is asked after first, or we would wait out
        a lease of our own."""
        if self._unsure is not None:
            with told("answer for the lease"):
                row = await self._row(_RESUME, self._name, self._unsure, ttl_s)
            self._unsure = None
            if row is not None:
                log.info("the lease was ours: its answer had been lost")
                return Lease(holder, LeaseTerm(row["term"]), ttl_s, row["now"])
        view = await self.read()
        if view is not None and view.expires_in_s > 0:
            return None
        self._unsure = secrets.token_hex(8)
        with told("answer for the lease"):
            try:
                row = await self._acquired(holder, address, ttl_s, above, self._unsure)
            except asyncpg.LockNotAvailableError:
                row = None  # the old leader's last write is still under way
            except asyncpg.UniqueViolationError:
                # The very first lease, taken by two at once: ON CONFLICT looks at the name alone, and (name,
                # term) is unique too. The other has it.
                row = None
        self._unsure = None
        return None if row is None else Lease(holder, LeaseTerm(row["term"]), ttl_s, row["now"])

    async def _acquired(
        self, holder: str, address: str, ttl_s: float, above: int, token: str
    ) -> asyncpg.Record | None:
        """Take the lease that ran out; whoever still holds its row after a while is cut off."""
        values = (self._name, holder, address, ttl_s, above, token)
        trying = asyncio.ensure_future(self._row(_ACQUIRE, *values, timeout_s=ACQUIRE_TIMEOUT_S))
        try:
            await asyncio.wait({trying}, timeout=CUT_AFTER_S)
            if not trying.done():
                await self._cut()
            return await trying
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)

    async def _cut(self) -> None:
        """End the sessions that keep us from a lease that ran out: of a leader frozen inside a write.

        Postgres cuts who idles inside a transaction by itself, but one that was asked to prepare a statement
        and not yet to run it counts as active, for ever. What is cut here was not committed."""
        waiting = self._connection
        if waiting is None:
            return
        try:
            other = await connect_one(self._dsn, application=APPLICATION)
            try:
                for row in await other.fetch(_CUT, waiting.get_server_pid(), APPLICATION):
                    log.warning(
                        "session %d held the row of a lease that ran out: %s",
                        row["pid"],
                        "cut off" if row["cut"] else "it could not be cut off",
                    )
            finally:
                await other.close(timeout=1.0)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
            # Not allowed, or Postgres is going away: the wait goes on as it would have.
            log.warning("who holds the row of the lease cannot be cut off: %s", e)

    async def renew(self, lease: Lease) -> Lease | None:
        """As in the port."""
        with told("renew the lease"):
            row = await self._row(_RENEW, self._name, lease.holder, lease.term, lease.ttl_s)
        return None if row is None else Lease(lease.holder, lease.term, lease.ttl_s, row[0])

    async def release(self, lease: Lease) -> None:
        """As in the port. A lease that is no longer ours is left alone."""
        with told("release the lease"):
            await self._row(_RELEASE, self._name, lease.holder, lease.term)

    async def read(self) -> LeaseView | None:
        """As in the port."""
        with told("answer for the lease"):
            row = await self._row(_READ, self._name)
        if row is None:
            return None
        return LeaseView(row["holder"], row["address"], LeaseTerm(row["term"]), row["expires_in_s"])

    async def close(self) -> None:
        """Close the connection; the lease itself stays as it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # A dead peer cannot be told goodbye, and need not be.
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=1.0)

    async def _row(
        self, sql: str, *values: object, timeout_s: float = STATEMENT_TIMEOUT_S
    ) -> asyncpg.Record | None:
        async with self._one_at_a_time:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect_one(self._dsn, application=APPLICATION)
            try:
                return await self._connection.fetchrow(sql, *values, timeout=timeout_s)
            except BaseException as e:
                # After a time-out or a cancellation nobody knows what the server still does on it.
                if isinstance(e, asyncio.CancelledError) or passes_with_time(e):
                    self._connection.terminate()
                    self._connection = None
                raise
