"""The history in Postgres, for every mirror over one store."""

import logging
from collections.abc import Sequence

from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import Postgres
from llmgw_mirror.adapters.postgres_calls import connection
from llmgw_mirror.core.history import Entry, Kind
from llmgw_mirror.ports import Unstorable

log = logging.getLogger(__name__)

NOTE = """
INSERT INTO weights_history (store_id, at, kind, model, version, path, asked_by, bytes, text)
VALUES ($1, to_timestamp($2), $3, $4, $5, $6, $7, $8, $9)
"""

NEWEST = """
SELECT extract(epoch FROM at)::float8 AS at, kind, model, version, path, asked_by, bytes, text
  FROM weights_history
 WHERE store_id = $1 AND ($2::text IS NULL OR model = $2) AND ($3::text IS NULL OR version = $3)
       AND ($4::float8 IS NULL OR at >= to_timestamp($4))
 ORDER BY seq DESC LIMIT $5
"""

# Among the oldest lines only, so that a look takes as long for a hundred lines as for a hundred million.
PRUNE = """
DELETE FROM weights_history
 WHERE seq IN (SELECT seq FROM (SELECT seq, at FROM weights_history
                                 WHERE store_id = $1 ORDER BY seq LIMIT $3) AS oldest
                WHERE at < to_timestamp($2))
RETURNING seq
"""


class PostgresHistory:
    """See ports.History."""

    def __init__(self, postgres: Postgres, *, store_id: str) -> None:
        self._postgres = postgres
        self._store_id = store_id

    async def note(self, entry: Entry) -> None:
        log.info("%s: %s %s: %s", entry.kind.value, entry.model, entry.version, entry.text)
        try:
            async with connection(self._postgres) as link:
                await link.execute(
                    NOTE, self._store_id, entry.at, entry.kind.value, entry.model, entry.version, entry.path,
                    entry.asked_by, entry.bytes, entry.text,
                )  # fmt: skip
        except (Unavailable, Unstorable) as e:
            log.warning("the line above is in this log alone: %s", e.text)

    async def newest(
        self, *, model: str | None, version: str | None, since: float | None, limit: int
    ) -> Sequence[Entry]:
        async with connection(self._postgres) as link:
            rows = await link.fetch(NEWEST, self._store_id, model, version, since, limit)
        return [
            Entry(
                at=row["at"], kind=Kind(row["kind"]), model=row["model"], version=row["version"],
                text=row["text"], path=row["path"], asked_by=row["asked_by"], bytes=row["bytes"],
            )
            for row in rows
        ]  # fmt: skip

    async def prune(self, *, before: float, most: int) -> int:
        async with connection(self._postgres) as link:
            return len(await link.fetch(PRUNE, self._store_id, before, most))
