"""Does an engine still answer? Asked before kept routes are used without a controller's word."""

import asyncio
from collections.abc import Callable, Sequence

import aiohttp

from llmgw_router.core.config import UpstreamTls
from llmgw_router.core.table import EndpointRow
from llmgw_router.relay.tls import Contexts

TIMEOUT_S = 2.0
_AT_ONCE = 32


class HttpProbe:
    """One GET /health an endpoint. Below 500 counts: an engine without that path still says 404, one that
    wants another credential 401; one that is loading says 503, and is not to be asked yet."""

    def __init__(self, tls: Callable[[], UpstreamTls] = UpstreamTls, *, timeout_s: float = TIMEOUT_S) -> None:
        """`tls` says what is trusted now. A reload makes another object of it, and its files are read again:
        they may have changed while their names have not."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._tls = tls
        self._trusted = tls()
        self._contexts = Contexts(self._trusted)

    async def alive(self, endpoints: Sequence[EndpointRow]) -> frozenset[str]:
        """Ids of those that answer now."""
        gate = asyncio.Semaphore(_AT_ONCE)
        trusted = self._tls()
        if trusted is not self._trusted:
            self._trusted, self._contexts = trusted, Contexts(trusted)
        # Neither cookies nor pooled connections outlive one round: the next may come minutes later.
        async with aiohttp.ClientSession(
            timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as session:

            async def one(row: EndpointRow) -> str | None:
                host = f"[{row.host}]" if ":" in row.host else row.host
                url = f"{'https' if row.tls else 'http'}://{host}:{row.port}{row.base_path}/health"
                headers = {"Authorization": f"Bearer {row.credential}"} if row.credential else {}
                async with gate:
                    try:
                        async with session.get(
                            url,
                            headers=headers,
                            allow_redirects=False,
                            ssl=self._contexts.of(row) or True,
                            server_hostname=row.tls_name,
                        ) as answer:
                            return row.endpoint_id if answer.status < 500 else None
                    except (aiohttp.ClientError, OSError, TimeoutError):
                        return None

            found = await asyncio.gather(*(one(row) for row in endpoints))
        return frozenset(endpoint_id for endpoint_id in found if endpoint_id is not None)
