"""Which of Postgres' failures pass with time, and which are ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from llmgw_kit.errors import Unavailable
from llmgw_kit.postgres import SUSPECT

#: SQLSTATE classes and codes after which the same statement may succeed: connection (08), resources (53),
#: operator intervention (57), rollback by deadlock or serialization (40), read-only node (25006), cut for
#: idling in a transaction (25P03), lock not available (55P03), cannot connect now (57P03).
#: https://www.postgresql.org/docs/15/errcodes-appendix.html
_PASSING = ("08", "53", "57", "40", "25006", "25P03", "55P03")


def passes_with_time(e: BaseException) -> bool:
    """Whether trying again later can help; a syntax error or a broken constraint never passes."""
    if isinstance(e, asyncpg.PostgresError):
        return (e.sqlstate or "").startswith(_PASSING)
    # asyncpg's "internal" error is what it says when the server dies while it rolls back.
    return isinstance(e, (*SUSPECT, TimeoutError, asyncpg.InternalClientError))


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise Unavailable naming `what` for failures that pass with time; bugs pass through unchanged."""
    try:
        yield
    except Exception as e:
        if not passes_with_time(e):
            raise
        raise Unavailable(
            f"Postgres did not {what}: {str(e) or type(e).__name__}",
            code="store_unavailable",
            retry_after_s=1.0,
        ) from e
