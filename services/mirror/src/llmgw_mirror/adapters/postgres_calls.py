"""A connection for a few statements, and what its failures mean here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import SUSPECT, Postgres
from llmgw_kit.text import shortened, visible
from llmgw_mirror.ports import Unstorable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

#: Of values: the same statement takes others.
UNSTORABLE = (
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.NumericValueOutOfRangeError,
    asyncpg.DatetimeFieldOverflowError,
    asyncpg.ProgramLimitExceededError,
)


@asynccontextmanager
async def connection(postgres: Postgres) -> "AsyncIterator[PoolConnectionProxy[asyncpg.Record]]":
    """Raises Unavailable when Postgres cannot be had, and Unstorable for a value that it takes from nobody; a
    statement that is wrong is a bug and stays one."""
    try:
        async with postgres.connection() as link:
            yield link
    except (
        asyncpg.SyntaxOrAccessError,
        asyncpg.DataError,
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.ProgramLimitExceededError,
    ) as e:
        # asyncpg itself says just DataError, of what it cannot even send.
        if isinstance(e, UNSTORABLE) or type(e) is asyncpg.DataError:
            raise Unstorable(
                f"Postgres does not take it: {shortened(visible(str(e)), most=200)}",
                next_steps=[
                    "remove the version and ask for it again, under names without strange characters"
                ],
            ) from e
        # A right that this login lacks is the operator's to give, and no bug.
        if not isinstance(e, asyncpg.InsufficientPrivilegeError):
            raise
        raise Unavailable(
            f"Postgres refuses: {e}",
            code="postgres_refuses",
            retry_after_s=10.0,
            next_steps=["see what Postgres logged, and whether its migrations are applied"],
        ) from e
    except (*SUSPECT, asyncpg.PostgresError, TimeoutError) as e:
        raise Unavailable(
            f"Postgres does not answer: {str(e) or type(e).__name__}",
            code="postgres_unavailable",
            retry_after_s=2.0,
            next_steps=["see whether Postgres runs; what is here is served without it"],
        ) from e
