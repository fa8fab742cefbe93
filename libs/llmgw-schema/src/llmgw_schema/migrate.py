"""Run the numbered migrations, forward only, one runner at a time.

Any service, or the deployment's own job, may run them: an advisory lock lets one through, the others
find the work done. Each migration is a transaction together with its row in `schema_migrations`.
"""

import hashlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

import asyncpg

from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError
from llmgw_kit.postgres import COMMAND_TIMEOUT_S, connect_one_patiently, safe_dsn

log = logging.getLogger(__name__)

#: Arbitrary, but the same for all who migrate this schema.
LOCK_KEY = 0x6C6C6D67775F7363
#: Waiting for another runner.
LOCK_WAIT_S = 120.0
#: One migration's statements; a large table takes long, a hung one should not take for ever.
STATEMENT_S = 3600.0


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def shipped() -> list[Migration]:
    """The migrations of this release, in order. A number given twice is a bug; one left out was never used,
    and is not used later: `migrate` refuses it."""
    found = []
    for entry in resources.files("llmgw_schema.migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", entry.name):
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    numbers = [migration.number for migration in found]
    assert len(set(numbers)) == len(numbers), f"a migration's number is given twice: {numbers}"
    return found


async def migrate_at(dsn: str, *, application: str, clock: Clock, give_up_after_s: float = 60.0) -> list[int]:
    """`migrate` on a connection of its own; a database that is not up yet is waited for.

    Raises StartupError, also for what the database refuses: no right to create, a lock held too long."""
    connection = await connect_one_patiently(
        dsn, application=f"{application}-migrate", clock=clock, give_up_after_s=give_up_after_s
    )
    try:
        return await migrate(connection)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as e:
        why = str(e) or type(e).__name__
        raise StartupError(
            f"the schema of Postgres at {safe_dsn(dsn)} cannot be brought up to date: {why}",
            next_steps=[
                "the login needs the right to create tables in its schema",
                "if another migration is running, start again when it has ended",
            ],
        ) from e
    finally:
        await connection.close(timeout=COMMAND_TIMEOUT_S)


async def migrate(
    connection: "asyncpg.Connection[asyncpg.Record]", migrations: Iterable[Migration] | None = None
) -> list[int]:
    """Bring the schema up to this release; returns the numbers that were applied here.

    Raises StartupError, before anything is applied, when the database is ahead of this release, an applied
    migration was edited, or a new one is numbered below one that is applied."""
    ours = list(shipped() if migrations is None else migrations)
    applied_here: list[int] = []
    # The lock needs longer than a statement usually may take: somebody else may be migrating.
    await connection.execute(f"SET lock_timeout = {int(LOCK_WAIT_S * 1000)}")
    await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY, timeout=LOCK_WAIT_S)
    try:
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_migrations ("
            "number int PRIMARY KEY, name text NOT NULL, digest text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT now())"
        )
        done = {row["number"]: row for row in await connection.fetch("SELECT * FROM schema_migrations")}
        _check(done, ours)
        for migration in ours:
            if migration.number in done:
                continue
            async with connection.transaction():
                await connection.execute(migration.sql, timeout=STATEMENT_S)
                await connection.execute(
                    "INSERT INTO schema_migrations (number, name, digest) VALUES ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.digest,
                )
            log.info("applied migration %04d %s", migration.number, migration.name)
            applied_here.append(migration.number)
    finally:
        # On a dead connection the lock is gone already, and what killed it is the story to tell.
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1)", LOCK_KEY)
            await connection.execute("RESET lock_timeout")
    return applied_here


def _check(done: dict[int, asyncpg.Record], ours: list[Migration]) -> None:
    newest, known = max(done, default=0), max((migration.number for migration in ours), default=0)
    if newest > known:
        raise StartupError(
            f"the database's schema is at {newest}, this release knows {known}",
            next_steps=["start a release at least as new as the one that migrated it"],
        )
    for migration in ours:
        row = done.get(migration.number)
        if row is not None and row["digest"] != migration.digest:
            raise StartupError(
                f"migration {migration.number:04d} {migration.name} was edited after it was applied here",
                next_steps=["restore the released text; changes go into a migration of their own"],
            )
        # A fresh database applies it before the later ones, this one after them: two schemas of one release.
        if row is None and migration.number < newest:
            raise StartupError(
                f"migration {migration.number:04d} {migration.name} is new here, "
                f"but {newest:04d} is applied already",
                next_steps=[f"give it the next free number, {known + 1:04d}: the order is that of numbers"],
            )
