"""Keys in Postgres: read whole or as they change, and a connection that listens for changes."""

import asyncio
import contextlib
from collections.abc import Iterator

import asyncpg

from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import SUSPECT, connect_one
from llmgw_router.core.keys import KeyRow
from llmgw_router.ports import KeysChange

CHANNEL = "llmgw_keys"

_VERSION = "SELECT version, deleted_at FROM api_keys_version"
_COLUMNS = """
digest, key_id, tenant, models, profiles, explain, extract(epoch FROM expires_at)::float8 AS expires_at
"""
#: An hour of grace: whose clock is right is decided where the key is used.
_GOOD = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp() - interval '1 hour')"
_ALL = f"SELECT {_COLUMNS} FROM api_keys WHERE {_GOOD}"
_CHANGED = f"SELECT {_COLUMNS}, {_GOOD} AS good FROM api_keys WHERE change > $1"

#: Enough for a hundred thousand keys over a slow link.
_WHOLE_TIMEOUT_S = 30.0


class PostgresKeys:
    """KeysStore on one connection, which is opened when it is needed and again when it is lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._hint = asyncio.Event()

    async def changed(self, since: int | None) -> KeysChange | None:
        """As in the port."""
        with _told():
            connection = await self._connected()
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                row = await connection.fetchrow(_VERSION)
                if row is None:
                    raise Unavailable("the table api_keys_version is empty; run the migrations")
                version = row["version"]
                if version == since:
                    return None
                # A lower version than ours: an older copy of the database was put in its place.
                if since is None or since < row["deleted_at"] or version < since:
                    rows = await connection.fetch(_ALL, timeout=_WHOLE_TIMEOUT_S)
                    return KeysChange(version, whole=True, keys=[_row(one) for one in rows], gone=[])
                rows = await connection.fetch(_CHANGED, since, timeout=_WHOLE_TIMEOUT_S)
                return KeysChange(
                    version,
                    whole=False,
                    keys=[_row(one) for one in rows if one["good"]],
                    gone=[one["digest"] for one in rows if not one["good"]],
                )

    async def hinted(self, within_s: float) -> None:
        """As in the port."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hint.wait(), within_s)
        self._hint.clear()

    async def close(self) -> None:
        """Close the connection, waiting for nothing that may not come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connected(self) -> "asyncpg.Connection[asyncpg.Record]":
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        await self.close()
        connection = await connect_one(self._dsn, application="llmgw-router-keys")
        try:
            await connection.add_listener(CHANNEL, lambda *_: self._hint.set())
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        # What was said while nobody listened is in the rows.
        return connection


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Everything that a database can do wrong passes for us: we go on with what we know, and ask again."""
    try:
        yield
    except asyncpg.UndefinedTableError as e:
        raise Unavailable(
            f"keys cannot be read from Postgres: {e}; a controller of this version makes the tables"
        ) from e
    except (asyncpg.PostgresError, *SUSPECT, TimeoutError) as e:
        raise Unavailable(f"keys cannot be read from Postgres: {str(e) or type(e).__name__}") from e


def _row(row: asyncpg.Record) -> KeyRow:
    return KeyRow(
        digest=row["digest"],
        key_id=row["key_id"],
        tenant=row["tenant"],
        models=None if row["models"] is None else tuple(row["models"]),
        profiles=None if row["profiles"] is None else tuple(row["profiles"]),
        explain=row["explain"],
        expires_unix_s=row["expires_at"],
    )
