"""Postgres through asyncpg, with the time-outs and the failover behaviour the suite needs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from llmgw_kit.clock import Clock
from llmgw_kit.errors import StartupError

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

log = logging.getLogger(__name__)

#: No statement of ours needs longer; without it a black hole holds a connection for ever.
COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
#: Cuts the row locks of a frozen process; part of the failover budget.
IDLE_IN_TRANSACTION_S = 2.0

T = TypeVar("T")

Pooler = Literal["none", "session", "transaction"]

_DSN_FORM = "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE"

#: A node that turned read-only, is shutting down, or is gone: every pooled connection is suspect.
SUSPECT = (
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # What asyncpg raises when the server was killed between two statements and its last words were half
    # read: "cannot switch to state 11; another operation (2) is in progress".
    asyncpg.InternalClientError,
    ConnectionError,
    OSError,
)


class Postgres:
    """A pool whose connections are dropped together when the server behind them changed."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        self._pool = pool

    @asynccontextmanager
    async def connection(self) -> "AsyncIterator[PoolConnectionProxy[asyncpg.Record]]":
        """One connection; after a failure that casts doubt on the server the whole pool is renewed."""
        try:
            async with self._pool.acquire(timeout=CONNECT_TIMEOUT_S) as connection:
                yield connection
        except SUSPECT:
            await self._pool.expire_connections()
            raise

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), timeout=3.0)
        except TimeoutError:
            self._pool.terminate()


def _session(application: str) -> dict[str, str]:
    return {
        "application_name": application,
        "idle_in_transaction_session_timeout": str(int(IDLE_IN_TRANSACTION_S * 1000)),
        "lock_timeout": "4000",
        # A dead peer is noticed by the kernel in seconds, not after two hours.
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
    }


async def connect_pool(
    dsn: str, *, application: str, max_size: int, min_size: int = 1, pooler: Pooler = "none"
) -> Postgres:
    """Open a pool. Raises OSError, TimeoutError or asyncpg errors; see `connect_patiently`."""
    pool = await asyncpg.create_pool(
        dsn,
        min_size=min_size,
        max_size=max_size,
        command_timeout=COMMAND_TIMEOUT_S,
        timeout=CONNECT_TIMEOUT_S,
        target_session_attrs=SessionAttribute.read_write,
        statement_cache_size=0 if pooler == "transaction" else 100,
        server_settings=_session(application) if pooler != "transaction" else None,
    )
    return Postgres(pool)


async def connect_one(dsn: str, *, application: str) -> asyncpg.Connection:
    """A connection of its own (the lease): never through a pooler, never shared."""
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=COMMAND_TIMEOUT_S,
        target_session_attrs=SessionAttribute.read_write,
        server_settings=_session(application),
    )


async def connect_patiently(
    dsn: str,
    *,
    application: str,
    max_size: int,
    clock: Clock,
    give_up_after_s: float = 60.0,
    pooler: Pooler = "none",
) -> Postgres:
    """Open a pool at start-up: retry with back-off, say so each time, give up in the end.

    Raises StartupError after `give_up_after_s`, or at once when waiting cannot help (wrong password,
    no such database, malformed DSN)."""
    return await _patiently(
        lambda: connect_pool(dsn, application=application, max_size=max_size, pooler=pooler),
        dsn,
        clock=clock,
        give_up_after_s=give_up_after_s,
    )


async def connect_one_patiently(
    dsn: str, *, application: str, clock: Clock, give_up_after_s: float = 60.0
) -> asyncpg.Connection:
    """`connect_one` at start-up, with the patience and the words of `connect_patiently`."""
    return await _patiently(
        lambda: connect_one(dsn, application=application), dsn, clock=clock, give_up_after_s=give_up_after_s
    )


async def _patiently(
    connect: Callable[[], Awaitable[T]], dsn: str, *, clock: Clock, give_up_after_s: float
) -> T:
    where = safe_dsn(dsn)
    began = clock.monotonic_s()
    wait_s = 0.5
    while True:
        try:
            return await connect()
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as e:
            raise StartupError(
                f"Postgres at {where} refuses the login: {e}", next_steps=["check the dsn setting"]
            ) from None
        except asyncpg.InvalidCatalogNameError as e:
            raise StartupError(
                f"Postgres at {where}: {e}", next_steps=["create the database, or correct the dsn setting"]
            ) from None
        except asyncpg.ClientConfigurationError as e:
            raise StartupError(f"dsn is not a Postgres address: {e}", next_steps=[_DSN_FORM]) from None
        except ValueError:
            # The parser's own words quote what it took for a port: a piece of the password.
            raise StartupError(
                f"dsn is not a Postgres address, as far as it can be shown: {where}",
                next_steps=[_DSN_FORM, "percent-encode / ? # [ @ : in the password (%2F for /)"],
            ) from None
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
            spent_s = clock.monotonic_s() - began
            why = str(e) or type(e).__name__
            if spent_s + wait_s > give_up_after_s:
                raise StartupError(
                    f"Postgres at {where} did not answer for {spent_s:.0f} s: {why}",
                    next_steps=[
                        "start it, correct the dsn setting, or leave dsn out for one controller in memory"
                    ],
                ) from None
            log.warning(
                "Postgres at %s does not answer (%s); trying again in %.1f s, giving up after %.0f s",
                where,
                why,
                wait_s,
                give_up_after_s,
            )
            await clock.sleep(wait_s)
            wait_s = min(wait_s * 2, 8.0)


def safe_dsn(dsn: str) -> str:
    """The DSN without its password, for messages; of one that cannot be told apart, only its scheme."""
    scheme, colon, rest = dsn.partition("://")
    if not colon:
        return "(no scheme://)"
    # A password may hold an @, and so may a value after the ?: then nobody knows where the host begins.
    address, _, query = rest.partition("?")
    if "@" in query:
        return f"{scheme}://..."
    credentials, at, host = address.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{host}"
