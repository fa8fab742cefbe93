"""Keys in a real Postgres: read whole and as they change, revoked within two seconds, kept over an outage."""

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from llmgw_kit.clock import SystemClock
from llmgw_kit.errors import Unavailable
from llmgw_kit.testing.embedded import EmbeddedPostgres
from llmgw_router.adapters.keys_postgres import PostgresKeys
from llmgw_router.core.config import WorkerConfig
from llmgw_router.core.keys import KeyRow, digest_of
from llmgw_router.keys import KeysLoop
from llmgw_schema.migrate import migrate
from tests.integration.router.harness import BODY, QUICK, Router, router
from tests.integration.router.upstream import Upstream, answering, json_answer

GUARDED = WorkerConfig(limits=QUICK, keys_required=True)
PUT = """
INSERT INTO api_keys (key_id, digest, prefix, name, models, created_at, expires_at)
VALUES ($1, $2, 'sk-llmgw-abcdef', 'a test', $3, now(), $4)
"""
SILENT = """
CREATE OR REPLACE FUNCTION api_keys_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE api_keys_version SET version = version + 1 RETURNING version INTO NEW.change;
    RETURN NEW;
END $$
"""
REVOKE = "UPDATE api_keys SET revoked_at = now() WHERE key_id = $1"


def digest(name: str) -> bytes:
    return digest_of(f"sk-llmgw-{name}".encode())


async def connected(dsn: str) -> Any:
    connection = await asyncpg.connect(dsn)
    await migrate(connection)
    return connection


async def test_whole_then_changes_then_whole_again_when_rows_were_deleted(postgres_dsn: str) -> None:
    writer = await connected(postgres_dsn)
    for name in ("a", "b", "gone"):
        await writer.execute(PUT, name, digest(name), ["m"] if name == "a" else None, None)
    await writer.execute(REVOKE, "gone")
    store = PostgresKeys(postgres_dsn)
    first = await store.changed(None)
    assert first is not None
    assert first.whole
    assert sorted(first.keys, key=lambda row: row.key_id) == [
        KeyRow(digest=digest("a"), key_id="a", models=("m",)),
        KeyRow(digest=digest("b"), key_id="b"),
    ]
    assert await store.changed(first.version) is None
    await writer.execute(PUT, "c", digest("c"), None, None)
    await writer.execute(REVOKE, "a")
    second = await store.changed(first.version)
    assert second is not None
    assert (second.whole, second.keys) == (False, [KeyRow(digest=digest("c"), key_id="c")])
    assert second.gone == [digest("a")]
    assert second.version == first.version + 2
    await writer.execute("DELETE FROM api_keys WHERE key_id = 'b'")
    third = await store.changed(second.version)
    assert third is not None
    assert third.whole
    assert [row.key_id for row in third.keys] == ["c"]
    await writer.execute("UPDATE api_keys_version SET version = 2, deleted_at = 1")
    older = await store.changed(third.version)
    assert older is not None
    assert older.whole, "an older copy of the database was put in its place"
    await store.close()
    await writer.close()


async def test_a_change_that_commits_late_is_not_overtaken(postgres_dsn: str) -> None:
    """Two writers at once: a number that is visible has no smaller one behind it that is not."""
    one, other = await connected(postgres_dsn), await asyncpg.connect(postgres_dsn)
    store = PostgresKeys(postgres_dsn)
    seen = await store.changed(None)
    assert seen is not None
    slow = one.transaction()
    await slow.start()
    await one.execute(PUT, "slow", digest("slow"), None, None)
    quick = asyncio.create_task(other.execute(PUT, "quick", digest("quick"), None, None))
    while await asyncpg_waiting(one) == 0:
        await asyncio.sleep(0.005)
    assert await store.changed(seen.version) is None
    await slow.commit()
    await quick
    change = await store.changed(seen.version)
    assert change is not None
    assert {row.key_id for row in change.keys} == {"slow", "quick"}
    for connection in (one, other):
        await connection.close()
    await store.close()


async def asyncpg_waiting(connection: Any) -> int:
    waiting: int = await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return waiting


async def test_a_hint_comes_with_the_commit(postgres_dsn: str) -> None:
    writer = await connected(postgres_dsn)
    store = PostgresKeys(postgres_dsn)
    await store.changed(None)
    waiting = asyncio.create_task(store.hinted(30.0))
    await writer.execute(PUT, "a", digest("a"), None, None)
    await asyncio.wait_for(waiting, 5.0)
    await store.close()
    await writer.close()


async def status(one: Router, key: str) -> int:
    async with await one.client() as client:
        client.post(BODY, more=b"api-key: sk-llmgw-%b\r\n" % key.encode())
        return (await client.answer()).status


@pytest.mark.parametrize("hints", [True, False])
async def test_a_revocation_is_in_force_within_two_seconds(
    tmp_path: Path, postgres_dsn: str, hints: bool
) -> None:
    """From the commit to the first 401, with the notification and with it lost."""
    writer = await connected(postgres_dsn)
    await writer.execute(PUT, "a", digest("a"), None, None)
    store = PostgresKeys(postgres_dsn)
    if not hints:
        await writer.execute(SILENT)
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        following = asyncio.create_task(KeysLoop(store, one.pool, SystemClock()).run())
        while await status(one, "a") == 503:
            await asyncio.sleep(0.005)
        assert await status(one, "a") == 200
        await writer.execute(REVOKE, "a")
        committed = time.monotonic()
        while await status(one, "a") == 200:
            assert time.monotonic() - committed < 2.0
        assert await status(one, "a") == 401
        following.cancel()
    await store.close()
    await writer.close()


async def test_keys_outlive_their_database_and_follow_it_again(
    tmp_path: Path, cage: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = EmbeddedPostgres(cage, tmp_path_factory.mktemp("keys-postgres"))
    server.start_now()
    writer = await connected(server.dsn("postgres"))
    await writer.execute(PUT, "a", digest("a"), None, None)
    store = PostgresKeys(server.dsn("postgres"))
    async with (
        Upstream(answering(json_answer())) as engine,
        router(tmp_path, engine.port, config=GUARDED) as one,
    ):
        loop = KeysLoop(store, one.pool, SystemClock())
        await loop.step()
        assert await status(one, "a") == 200
        await asyncio.to_thread(server.kill)
        with pytest.raises(Unavailable):
            await store.changed(1)
        await loop.step()
        assert await status(one, "a") == 200, "known keys stay good"
        assert await status(one, "x") == 401
        await asyncio.to_thread(server.restart_now)
        writer = await connected(server.dsn("postgres"))
        await writer.execute(REVOKE, "a")
        await loop.step()
        assert await status(one, "a") == 401
    await store.close()
    await writer.close()
