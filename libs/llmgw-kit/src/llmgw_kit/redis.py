"""Redis through redis-py, with short time-outs: what it holds may vanish, so nobody waits for it."""

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

TIMEOUT_S = 0.5


def connect(url: str, *, max_connections: int = 8) -> "redis.Redis":
    """A client that connects on first use. Raises ValueError for a malformed URL.

    No retries: a script retried after a time-out may run twice, and callers have a next tick."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=TIMEOUT_S,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
    return redis.Redis(connection_pool=pool)
