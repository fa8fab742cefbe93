"""Events of one subject are found by an index, also of a log of many days, and whatever plan is kept."""

import asyncpg
import pytest

from llmgw_controller.adapters.store_postgres import PostgresStore
from llmgw_kit.postgres import connect_pool

#: Enough that reading all of it is the dearer way.
EVENTS = 60_000

FILL = """
INSERT INTO events (at, term, kind, subject, text, severity)
SELECT now() - make_interval(secs => $1 - number), 1, 'kind', 'm' || lpad((number % 3000)::text, 4, '0'), '',
       'note'
  FROM generate_series(1, $1) AS number
"""


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("after", [False, True])
async def test_events_of_a_subject_are_found_by_their_index(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch, plans: str, after: bool
) -> None:
    pool = await connect_pool(migrated_dsn, application="test", max_size=1)
    store = PostgresStore(pool)
    asked: list[tuple[str, tuple[object, ...]]] = []
    async with pool.connection() as connection:
        await connection.execute(FILL, EVENTS)
        await connection.execute("ANALYZE events")
        real = asyncpg.Connection.fetch

        async def fetch(self: object, query: str, *args: object, **rest: object) -> object:
            asked.append((query, args))
            return await real(self, query, *args, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncpg.Connection, "fetch", fetch)
    if after:
        rows = await store.events_after(0, subject="m0007", limit=5)
        assert [row.event_id for row in rows] == [7 + 3000 * number for number in range(5)]
    else:
        rows = await store.events(since=None, subject="m0007", limit=5)
        assert [row.event_id for row in rows] == [57007 - 3000 * number for number in range(5)]
    ((query, args),) = asked
    monkeypatch.undo()
    async with pool.connection() as connection:
        await connection.execute(f"SET plan_cache_mode = {plans}")
        await connection.execute(f"PREPARE asked AS {query}")
        given = ", ".join("NULL" if one is None else repr(one) for one in args)
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE asked({given})"))
    await store.close()
    assert "events_of_subject" in plan, plan
    assert "Seq Scan on events" not in plan, plan
    assert "events_pkey" not in plan, plan
