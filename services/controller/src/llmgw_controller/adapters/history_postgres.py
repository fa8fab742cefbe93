"""Recorded statuses in Postgres: a row each, whenever one had changed; thinned out as it grows old."""

from __future__ import annotations  # asyncpg's generics exist in its type stubs only

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from llmgw_controller.adapters.postgres_errors import told
from llmgw_controller.ports import StatusRecord
from llmgw_kit.ids import LeaseTerm
from llmgw_kit.postgres import Postgres

if TYPE_CHECKING:
    from llmgw_controller.adapters.changes_postgres import Connection

    #: Opens the one transaction that the leader may write in; its second argument says what was not done.
    Writing = Callable[[LeaseTerm, str], AbstractAsyncContextManager[Connection]]

#: Kept on disk, compressed by Postgres itself; the oldest give way.
BYTES_MOST = 512 * 1024 * 1024

# Times of two leaders may cross by the skew that a term's clock allows: what is older than the newest row
# would stand before it and hide it, so the newest word replaces what is not older than itself.
_FORGET_LATER = "DELETE FROM status_history WHERE at >= to_timestamp($1)"
_RECORD = "INSERT INTO status_history (at, term, status) VALUES (to_timestamp($1), $2, $3)"
_NEWEST = """
SELECT extract(epoch FROM at)::float8 AS at, term, status FROM status_history
 WHERE at <= to_timestamp($1) ORDER BY at DESC LIMIT 1
"""
_SPAN = """
SELECT extract(epoch FROM min(at))::float8 AS first, extract(epoch FROM max(at))::float8 AS last
  FROM status_history
"""
_THIN = """
WITH judged AS (
    SELECT at,
           at < to_timestamp($1) AS too_old,
           at < to_timestamp($2) AND row_number() OVER (
               PARTITION BY floor(extract(epoch FROM at) / 60) ORDER BY at DESC) > 1 AS crowded,
           sum(pg_column_size(status)) OVER (ORDER BY at DESC) > $3 AS too_much
      FROM status_history)
DELETE FROM status_history h USING judged j
 WHERE h.at = j.at AND (j.too_old OR j.crowded OR j.too_much)
RETURNING h.at
"""


class PostgresHistory:
    """History on the store's pool; `writing` is the store's own fence."""

    def __init__(self, postgres: Postgres, writing: Writing, bytes_most: int = BYTES_MOST) -> None:
        self._postgres = postgres
        self._writing = writing
        self._bytes_most = bytes_most

    async def record(self, term: LeaseTerm, at: float, status: bytes) -> None:
        """As in the port."""
        with told("record the status"):
            async with self._writing(term, "no status recorded") as connection:
                await connection.execute(_FORGET_LATER, at)
                await connection.execute(_RECORD, at, term, status)

    async def newest(self, at: float) -> StatusRecord | None:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                row = await connection.fetchrow(_NEWEST, at)
        return StatusRecord(row["at"], LeaseTerm(row["term"]), row["status"]) if row is not None else None

    async def span(self) -> tuple[float, float] | None:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                row = await connection.fetchrow(_SPAN)
        return (row["first"], row["last"]) if row is not None and row["first"] is not None else None

    async def thin(self, term: LeaseTerm, *, before: float, minutes_before: float) -> int:
        """As in the port."""
        with told("thin out the recorded statuses"):
            async with self._writing(term, "no status forgotten") as connection:
                gone = await connection.fetch(_THIN, before, minutes_before, self._bytes_most)
        return len(gone)
