"""Usage into Postgres: batches of rows, each row once whatever is repeated."""

from collections.abc import Sequence

import asyncpg

from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import SUSPECT, connect_one
from llmgw_router.core.usage_lines import UsageRecord

_TYPES = {
    "usage_id": "text", "request_id": "text", "router_id": "text", "key_id": "text", "tenant": "text",
    "model": "text", "replica_id": "text", "path": "text", "began_unix_ms": "float8",
    "ended_unix_ms": "float8", "status": "int", "code": "text", "source": "text", "complete": "boolean",
    "prompt_tokens": "bigint", "cached_tokens": "bigint", "output_tokens": "bigint", "ttft_ms": "float8",
    "duration_ms": "float8",
}  # fmt: skip
_TIMES = {"began_unix_ms": "began_at", "ended_unix_ms": "ended_at"}

_NAMES = ", ".join(_TIMES.get(name, name) for name in _TYPES)
_VALUES = ", ".join(f"to_timestamp({name} / 1000.0)" if name in _TIMES else name for name in _TYPES)
_ARRAYS = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(_TYPES.values(), start=1))

# A row that is there stays as it is: what is offered again is the same, or knows less.
_PUT = f"""
INSERT INTO usage_records ({_NAMES})
SELECT {_VALUES} FROM unnest({_ARRAYS}) AS given({", ".join(_TYPES)})
ON CONFLICT (usage_id) DO NOTHING
"""


class PostgresUsage:
    """UsageSink on one connection, which is opened when it is needed and again when it is lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def put(self, records: Sequence[UsageRecord]) -> None:
        """As in the port."""
        columns = [[_storable(getattr(one, name)) for one in records] for name in _TYPES]
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect_one(self._dsn, application="llmgw-router-usage")
            await self._connection.execute(_PUT, *columns)
        except asyncpg.UndefinedTableError as e:
            raise Unavailable(
                f"usage cannot be written to Postgres: {e}; a controller of this version makes the tables"
            ) from e
        except (asyncpg.PostgresError, *SUSPECT, TimeoutError) as e:
            await self.close()
            raise Unavailable(f"usage cannot be written to Postgres: {str(e) or type(e).__name__}") from e

    def settled(self) -> None:
        """As in the port; the table itself knows what it has."""

    async def close(self) -> None:
        """Close the connection, waiting for nothing that may not come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _storable(value: object) -> object:
    # Postgres has no NUL in its texts, and one such path must not keep a batch from being written for ever.
    return value.replace("\0", "\ufffd") if isinstance(value, str) and "\0" in value else value
