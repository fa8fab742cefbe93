"""The registry over HTTP: the Hub's API, asked with patience for one time-out and a bound on every answer.

Its failures are a line of their own (M21): `trouble` says what happened and since when, and while it rests
nobody waits for it. Redirects are followed by hand, so that the token is shown to its own origin only (H10).
"""

import asyncio
import logging
import ssl
import zlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.http_trouble import why
from llmgw_mirror.adapters.upstream_lines import connector
from llmgw_mirror.core import breaker, headers
from llmgw_mirror.core.origins import BadRedirect, next_hop, origin_of, shown
from llmgw_mirror.core.registry_answers import Said, refusal
from llmgw_mirror.core.transfer import PASSING

log = logging.getLogger(__name__)

T = TypeVar("T")

REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Of one read of an answer.
ANSWER_READ_BYTES = 1 << 16
#: Of a refusal's body.
REFUSAL_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class RegistryState:
    """What is known of the registry without asking it. Times in seconds since 1970."""

    base_url: str
    has_token: bool
    trouble: str | None
    trouble_since: float | None
    tried_again_at: float | None


@dataclass(frozen=True)
class Answered:
    """A body with status 200, decoded, and where it came from after redirects."""

    body: bytes
    url: str
    link: str | None


class _Failed(Exception):
    """No answer that can be used. `rests`: asking again at once would cost the next one as much, or was asked
    not to be done; `rest_s`: for how long, where the registry said so."""

    def __init__(self, what: str, *, where: str, rests: bool, rest_s: float | None = None) -> None:
        super().__init__(what)
        self.where = where
        self.rests = rests
        self.rest_s = rest_s


class RegistryHttp:
    """One client session towards one registry. `base_url`: no slash at its end."""

    def __init__(
        self, *, base_url: str, token: str | None, clock: Clock, timeout_s: float, proxy: str | None = None,
        user_agent: str = "llmgw-mirror",
    ) -> None:  # fmt: skip
        self.base_url = base_url
        self._token = token
        self._origin = origin_of(base_url)
        self._clock = clock
        self._timeout_s = timeout_s
        self._proxy = proxy
        self._breaker = breaker.Breaker()
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": user_agent},
            timeout=aiohttp.ClientTimeout(total=None),
            connector=connector(limit=16),
        )

    async def close(self) -> None:
        await self._session.close()

    @property
    def has_token(self) -> bool:
        return self._token is not None

    def state(self) -> RegistryState:
        """Never asks."""
        trouble = self._breaker.trouble
        left_s = breaker.tried_again_in_s(self._breaker, self._clock.monotonic_s())
        return RegistryState(
            shown(self.base_url),
            self.has_token,
            trouble=None if trouble is None else trouble.what,
            trouble_since=None if trouble is None else trouble.since,
            tried_again_at=None if left_s is None else self._clock.unix_s() + left_s,
        )

    def misspoke(self, what: str) -> Unavailable:
        """The error for an answer that is none; remembered as trouble, but asked again at will."""
        self._breaker = breaker.odd(self._breaker, what, wall=self._clock.unix_s())
        log.warning("the registry at %s: %s", shown(self.base_url), what)
        return Unavailable(
            f"the registry at {shown(self.base_url)} cannot be understood: {what}",
            code="registry_odd",
            next_steps=["see whether registry_url is that of a registry, and nothing stands before it"],
        )

    async def get(self, url: str, *, what: str, most_bytes: int) -> Answered:
        """A URL of the registry; `what`: of whom it speaks, for errors.

        Raises Unavailable, NotFound, Denied, InvalidRequest."""
        self._breaker, ask = breaker.may_ask(self._breaker, self._clock.monotonic_s())
        if not ask:
            raise self._resting()
        alone = self._breaker.probing
        trail = [url]
        try:
            said, body, link = await self._in_time(self._follow(trail, most_bytes))
        except TimeoutError:
            silence = f"no answer within {self._timeout_s:g} s"
            raise self._in_trouble(_Failed(silence, where=trail[-1], rests=True), alone=alone) from None
        except _Failed as e:
            raise self._in_trouble(e, alone=alone) from e
        except BaseException:
            # Cancelled, or a bug: the next one may try.
            if alone:
                self._breaker = breaker.given_up(self._breaker)
            raise
        if said is not None:
            wrong = refusal(said, what=what, base_url=shown(self.base_url), has_token=self.has_token)
            if wrong.code in ("bad_token", "registry_odd"):
                self._breaker = breaker.odd(self._breaker, wrong.text, wall=self._clock.unix_s())
            else:
                self._well()
            raise wrong
        self._well()
        return Answered(body, trail[-1], link)

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """By this client's clock. Raises TimeoutError."""
        task = asyncio.ensure_future(work)
        alarm = asyncio.ensure_future(self._clock.sleep(self._timeout_s))
        try:
            await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise TimeoutError
        finally:
            task.cancel()
            alarm.cancel()
            await asyncio.wait({task, alarm})
            if not task.cancelled():
                task.exception()

    def _well(self) -> None:
        if self._breaker.trouble is not None:
            log.info("the registry at %s answers again", shown(self.base_url))
        self._breaker = breaker.answered(self._breaker)

    def _resting(self) -> Unavailable:
        trouble = self._breaker.trouble
        left_s = breaker.tried_again_in_s(self._breaker, self._clock.monotonic_s())
        assert trouble is not None
        return Unavailable(
            f"the registry at {shown(self.base_url)} is left alone for now: {trouble.what}",
            code="registry_unavailable",
            retry_after_s=left_s or 1.0,
            next_steps=["wait; what is here already is served without it"],
        )

    def _in_trouble(self, failed: _Failed, *, alone: bool) -> Unavailable:
        """Only the registry's own failures count, and several at once count as one."""
        what, wall = str(failed), self._clock.unix_s()
        if origin_of(failed.where) == self._origin and (alone or self._breaker.rests_until is None):
            if failed.rests:
                now = self._clock.monotonic_s()
                self._breaker = breaker.failed(self._breaker, what, now=now, wall=wall, rest_s=failed.rest_s)
            else:
                self._breaker = breaker.odd(self._breaker, what, wall=wall)
            log.warning("the registry at %s is in trouble: %s", shown(self.base_url), what)
        elif alone:
            self._breaker = breaker.given_up(self._breaker)
        left_s = breaker.tried_again_in_s(self._breaker, self._clock.monotonic_s())
        return Unavailable(
            f"the registry at {shown(self.base_url)} cannot be asked: {what}",
            code="registry_unavailable" if failed.rests else "registry_odd",
            retry_after_s=left_s or failed.rest_s,
            next_steps=["what is here is served without it; how it fares: llmgwctl mirror registry"],
        )

    async def _follow(self, trail: list[str], most_bytes: int) -> tuple[Said | None, bytes, str | None]:
        """A refusal, or a body and its Link header. `trail` grows with each redirect: whoever is silent is
        the last on it."""
        while True:
            url = trail[-1]
            async with self._open(url) as response:
                if response.status not in REDIRECTS:
                    return await self._taken(response, url, most_bytes)
                try:
                    trail.append(next_hop(url, response.headers.get("Location"), hops=len(trail) - 1))
                except BadRedirect as e:
                    raise _Failed(e.text, where=url, rests=False) from None

    def _open(self, url: str) -> "_Opening":
        sent = {"Accept": "application/json, */*;q=0.5", "Accept-Encoding": "gzip, identity"}
        if self._token is not None and origin_of(url) == self._origin:
            sent["Authorization"] = f"Bearer {self._token}"
        return _Opening(self._session, url, sent, self._proxy)

    async def _taken(
        self, response: aiohttp.ClientResponse, url: str, most_bytes: int
    ) -> tuple[Said | None, bytes, str | None]:
        got = response.headers
        if response.status in PASSING:
            wait_s = headers.retry_after_s(
                got.get("Retry-After"), got.get("RateLimit"), now=self._clock.unix_s()
            )
            asked = f" and asks for {wait_s:.0f} s of rest" if wait_s is not None else ""
            # A bare 500 is about what was asked, as a rule, and comes at once: others may ask.
            rests = response.status != 500 or wait_s is not None
            raise _Failed(f"it answers {response.status}{asked}", where=url, rests=rests, rest_s=wait_s)
        if response.status != 200:
            body = await _body(response, url, REFUSAL_MAX_BYTES, cut=True)
            said = Said(response.status, got.get("X-Error-Code"), got.get("X-Error-Message"), body)
            return said, b"", None
        return None, await _body(response, url, most_bytes), ", ".join(got.getall("Link", [])) or None


class _Opening:
    """One request; failures to get an answer become _Failed, and the connection is never kept half read."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, sent: dict[str, str], proxy: str | None
    ) -> None:
        self._session = session
        self._url = url
        self._sent = sent
        self._proxy = proxy

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            self._response = await self._session.get(
                URL(self._url, encoded=True), headers=self._sent, allow_redirects=False, proxy=self._proxy
            )
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError) as e:
            raise _Failed(
                f"its certificate is not trusted: {why(e, self._url)}", where=self._url, rests=True
            ) from e
        except (aiohttp.ClientError, OSError, ValueError) as e:
            raise _Failed(f"no answer: {why(e, self._url)}", where=self._url, rests=True) from e
        return self._response

    async def __aexit__(self, *_: object) -> None:
        self._response.close()


async def _body(response: aiohttp.ClientResponse, url: str, most: int, *, cut: bool = False) -> bytes:
    """All of it, decoded; more than `most` bytes are refused, or cut off. A packed body is unpacked as it
    comes: what unpacks to gigabytes stops at the bound like any other."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise _Failed(f"it sends {encoding[:20]!r}, which was not asked for", where=url, rests=False)
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    taken = bytearray()
    try:
        async for piece in response.content.iter_chunked(ANSWER_READ_BYTES):
            taken += piece if unpack is None else unpack.decompress(piece, most + 1 - len(taken))
            if len(taken) > most:
                if cut:
                    return bytes(taken[:most])
                raise _Failed(f"its answer has more than {most} bytes", where=url, rests=False)
    except zlib.error as e:
        raise _Failed(f"its answer is packed badly: {e}", where=url, rests=False) from e
    except (aiohttp.ClientError, OSError) as e:
        raise _Failed(f"its answer broke off: {why(e, url)}", where=url, rests=True) from e
    if unpack is not None and not unpack.eof and not cut:
        raise _Failed("its answer broke off", where=url, rests=False)
    return bytes(taken)
