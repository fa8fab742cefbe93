"""API keys and what they used in Postgres. Keys are written by the leader, usage by routers."""

from __future__ import annotations  # asyncpg's generics exist in its type stubs only

from typing import TYPE_CHECKING

from llmgw_controller.adapters import changes_postgres
from llmgw_controller.adapters.postgres_errors import told
from llmgw_controller.core.keys import ApiKey, UsageSum

if TYPE_CHECKING:
    import asyncpg

    from llmgw_controller.adapters.history_postgres import Writing
    from llmgw_controller.core.plan import PutEvent
    from llmgw_kit.ids import LeaseTerm
    from llmgw_kit.postgres import Postgres

_PUT = """
INSERT INTO api_keys (key_id, digest, prefix, name, tenant, models, profiles, explain, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, to_timestamp($9), to_timestamp($10))
"""
_REVOKE = "UPDATE api_keys SET revoked_at = to_timestamp($2) WHERE key_id = $1 AND revoked_at IS NULL"
_SELECT = """
SELECT key_id, digest, prefix, name, tenant, models, profiles, explain,
       extract(epoch FROM created_at)::float8 AS created_at,
       extract(epoch FROM expires_at)::float8 AS expires_at,
       extract(epoch FROM revoked_at)::float8 AS revoked_at
  FROM api_keys
"""
_LIST = f"""{_SELECT}
 WHERE $2 OR (revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()))
 ORDER BY created_at DESC, key_id LIMIT $1
"""
_FIND = f"{_SELECT} WHERE key_id = $1 OR starts_with(key_id, $1) OR prefix = $1 ORDER BY key_id LIMIT $2"

_BY = {"key": "key_id", "model": "model", "tenant": "tenant", "router": "router_id"}
_USAGE = """
SELECT {by} AS name, count(*) AS requests, count(*) FILTER (WHERE NOT complete) AS interrupted,
       count(*) FILTER (WHERE source = 'unknown') AS unknown,
       coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
       coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
       coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
       coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(output_tokens, 0))
                FILTER (WHERE source IN ('counted', 'estimated')), 0)::bigint AS estimated_tokens
  FROM usage_records WHERE began_at >= to_timestamp($1)
 GROUP BY 1 ORDER BY coalesce(sum(prompt_tokens), 0) + coalesce(sum(output_tokens), 0) DESC, 1 LIMIT $2
"""


class PostgresApiKeys:
    """ApiKeys on the store's pool; `writing` is the store's own fence."""

    def __init__(self, postgres: Postgres, writing: Writing) -> None:
        self._postgres = postgres
        self._writing = writing

    async def put(self, term: LeaseTerm, key: ApiKey, event: PutEvent) -> None:
        """As in the port."""
        with told("store the key"):
            async with self._writing(term, "no key was created") as connection:
                await connection.execute(
                    _PUT, key.key_id, key.digest, key.prefix, key.name, key.tenant, key.models, key.profiles,
                    key.explain, key.created_at, key.expires_at,
                )  # fmt: skip
                await changes_postgres.write(connection, term, event)

    async def revoke(self, term: LeaseTerm, key_id: str, at: float, event: PutEvent) -> None:
        """As in the port."""
        with told("revoke the key"):
            async with self._writing(term, "no key was revoked") as connection:
                await connection.execute(_REVOKE, key_id, at)
                await changes_postgres.write(connection, term, event)

    async def newest(self, limit: int, *, also_gone: bool) -> list[ApiKey]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                rows = await connection.fetch(_LIST, limit, also_gone)
        return [_key(row) for row in rows]

    async def find(self, text: str, limit: int) -> list[ApiKey]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                rows = await connection.fetch(_FIND, text, limit)
        return [_key(row) for row in rows]

    async def usage(self, by: str, since: float, limit: int) -> list[UsageSum]:
        """As in the port."""
        with told("answer"):
            async with self._postgres.connection() as connection:
                rows = await connection.fetch(_USAGE.format(by=_BY[by]), since, limit)
        return [UsageSum(**dict(row)) for row in rows]


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        key_id=row["key_id"],
        digest=row["digest"],
        prefix=row["prefix"],
        name=row["name"],
        tenant=row["tenant"],
        models=None if row["models"] is None else tuple(row["models"]),
        profiles=None if row["profiles"] is None else tuple(row["profiles"]),
        explain=row["explain"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )
