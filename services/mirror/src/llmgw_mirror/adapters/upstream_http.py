"""http and https upstreams: aiohttp with every convenience off that would hide what was sent.

Redirects are followed by hand, so that a token is shown to its own origin only (H10, H11); bodies are
asked for unencoded, since a range of a compressed body is no range of the file (H1).
"""

import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from llmgw_kit.clock import Clock
from llmgw_mirror.adapters.http_trouble import why, without_secrets
from llmgw_mirror.adapters.upstream_lines import connector
from llmgw_mirror.core import headers
from llmgw_mirror.core.origins import BadRedirect, next_hop, origin_of, shown
from llmgw_mirror.core.transfer import Head
from llmgw_mirror.ports import Interrupted, Refused

log = logging.getLogger(__name__)

REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Of a refusal's body, for people. A proxy's page of HTML would only hide the status.
SAID_MAX_BYTES = 200
#: What a connection holds before it makes the other side wait.
BUFFER_BYTES = 1 << 20


@dataclass
class _Answer:
    head: Head
    response: aiohttp.ClientResponse
    #: Where the body comes from, with its query.
    url: str

    async def body(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self.response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            if left := _left_over(self.response.content):
                yield left
            raise Interrupted(f"{shown(self.url)} broke off: {why(e, self.url)}") from e


def _left_over(content: aiohttp.StreamReader) -> bytes:
    """What arrived before the connection broke and was not read yet.

    aiohttp answers reads with the error first, and up to twice the buffer would be fetched again at
    every cut; a link that breaks more often than that would never get anywhere."""
    content.set_exception(None)  # type: ignore[arg-type]
    return content.read_nowait()


class HttpUpstream:
    """One client session. `tokens` maps an origin (scheme://host[:port]) to its bearer token."""

    remote = True

    def __init__(
        self,
        *,
        clock: Clock,
        tokens: Mapping[str, str],
        proxy: str | None = None,
        connect_timeout_s: float = 10.0,
        user_agent: str = "llmgw-mirror",
    ) -> None:
        self._clock = clock
        self._tokens = {str(origin_of(origin)): token for origin, token in tokens.items()}
        self._proxy = proxy
        self._session = aiohttp.ClientSession(
            # trust_env stays off: the proxy is this service's own setting.
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": user_agent, "Accept": "*/*"},
            # No limit in total: a file takes hours. Silence is the caller's to judge, by bytes gained.
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=connect_timeout_s, connect=connect_timeout_s
            ),
            connector=connector(limit=0),
            read_bufsize=BUFFER_BYTES,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def open(self, url: str, *, offset: int, validator: str | None) -> AsyncIterator[_Answer]:
        """See ports.Upstream."""
        hops, waits = 0, list[float]()
        while True:
            async with self._ask(url, offset, validator) as response:
                exhausted = headers.exhausted_s(response.headers.get("RateLimit"))
                waits += [] if exhausted is None else [exhausted]
                if response.status in REDIRECTS:
                    location = response.headers.get("Location")
                    try:
                        target = next_hop(url, location, hops=hops)
                    except BadRedirect as e:
                        raise Refused(e.text, next_steps=e.next_steps) from None
                    log.debug("%s redirects to %s", shown(url), shown(target))
                else:
                    head = await self._head(response, url)
                    yield _Answer(replace(head, exhausted_s=max(waits, default=None)), response, url)
                    return
            url, hops = target, hops + 1

    @asynccontextmanager
    async def _ask(
        self, url: str, offset: int, validator: str | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = {"Accept-Encoding": "identity"}
        if offset:
            sent["Range"] = f"bytes={offset}-"
            if validator is not None:
                sent["If-Range"] = validator
        token = self._tokens.get(str(origin_of(url)))
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            response = await self._session.get(
                URL(url, encoded=True), headers=sent, allow_redirects=False, proxy=self._proxy
            )
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError) as e:
            raise Refused(
                f"{shown(url)}: the server's certificate is not trusted: {why(e, url)}",
                next_steps=[
                    "see whether upstream's certificate is valid for this host, and its authority known here"
                ],
            ) from e
        except (aiohttp.InvalidURL, ValueError) as e:
            raise Refused(
                f"{shown(url)} is not a URL that can be asked for: {why(e, url)}",
                next_steps=["correct the URL"],
            ) from e
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise Interrupted(f"{shown(url)} does not answer: {why(e, url)}") from e
        try:
            yield response
        finally:
            # Not release(): what is left of the body may be gigabytes.
            response.close()

    async def _head(self, response: aiohttp.ClientResponse, url: str) -> Head:
        got = response.headers
        length = headers.length(got.get("Content-Length"))
        return Head(
            response.status,
            content_length=length,
            content_range=headers.content_range(got.get("Content-Range")),
            validator=headers.validator(got.get("ETag"), got.get("Last-Modified")),
            encoding=(got.get("Content-Encoding") or "").strip().lower() or None,
            retry_after_s=headers.retry_after_s(
                got.get("Retry-After"), got.get("RateLimit"), now=self._clock.unix_s()
            ),
            delimited=length is not None or "chunked" in got.get("Transfer-Encoding", "").lower(),
            said=await _said(response, url),
        )


async def _said(response: aiohttp.ClientResponse, url: str) -> str | None:
    if response.status < 400 or "html" in response.headers.get("Content-Type", "").lower():
        return None
    try:
        body = await response.content.read(SAID_MAX_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None  # the status says enough
    text = without_secrets(body.decode("utf-8", "replace"), url)
    return "".join(c for c in text if c.isprintable()) or None
