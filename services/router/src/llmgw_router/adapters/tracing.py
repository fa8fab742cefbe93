"""Spans to a collector: OTLP over HTTP in its JSON encoding, in batches, by the supervisor alone.

A small exporter of our own: spans come into being when an exchange is over, from a record, so there is
nothing for an SDK to start, keep current or end; what is left of it is this POST (ADR 0028).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec

from llmgw_router.relay.ipc import AccessRecord
from llmgw_router.settings_telemetry import TracingEntry
from llmgw_router.spans import Span, export, spans

log = logging.getLogger(__name__)

#: Spans that may wait for the collector; older ones go first, since newer tell more of what is wrong now.
MOST_WAITING = 8192
BATCH = 512
EVERY_S = 1.0
TIMEOUT_S = 10.0
#: Answers after which the same may be sent again (OTLP specification, "Failures").
_AGAIN = frozenset((429, 502, 503, 504))
_MOST_TRIES = 5
_MOST_WAIT_S = 30.0


class OtlpExporter:
    """One collector. `run` sends for ever; what it does not take is dropped and counted."""

    def __init__(
        self,
        settings: TracingEntry,
        *,
        instance: str,
        version: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._version = version
        self._sleep = sleep
        self._waiting: deque[Span] = deque(maxlen=MOST_WAITING)
        self._session: aiohttp.ClientSession | None = None
        self._failing = False
        self.exported = 0
        self.dropped = 0

    def reconfigure(self, settings: TracingEntry) -> None:
        """Send there from the next batch on."""
        self._settings = settings

    def offer(self, records: Sequence[AccessRecord]) -> None:
        if self._settings.traces_url is None:
            return
        for record in records:
            if record.trace is not None:
                for span in spans(record):
                    if len(self._waiting) == MOST_WAITING:
                        self.dropped += 1
                    self._waiting.append(span)

    async def run(self) -> None:
        while True:
            await self._sleep(EVERY_S)
            while self._waiting:
                await self.flush_one()

    async def flush_one(self) -> None:
        """Send one batch, however often it takes; then it is exported or dropped."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        if not batch:
            return
        body = msgspec.json.encode(
            export(
                batch,
                service_name=self._settings.service_name,
                version=self._version,
                instance=self._instance,
            )
        )
        wait_s = 1.0
        for attempt in range(1, _MOST_TRIES + 1):
            trouble, again_s = await self._post(body)
            if trouble is None:
                self.exported += len(batch)
                if self._failing:
                    log.info("spans are exported again")
                self._failing = False
                return
            if not self._failing:
                self._failing = True
                log.warning("spans not exported: %s; tried again, dropped in the end", trouble)
            if again_s is None or attempt == _MOST_TRIES:
                break
            await self._sleep(max(wait_s, min(again_s, _MOST_WAIT_S)))
            wait_s = min(wait_s * 2, _MOST_WAIT_S)
        self.dropped += len(batch)

    async def _post(self, body: bytes) -> tuple[str | None, float | None]:
        """What was wrong, and how long to wait at least before the same is sent again; None: not again."""
        url = self._settings.traces_url
        if url is None:
            return "tracing was switched off", None
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = {name: value.get_secret_value() for name, value in self._settings.headers.items()}
        headers["content-type"] = "application/json"
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                if 200 <= answer.status < 300:
                    return None, None
                given = answer.headers.get("retry-after", "")
                again_s = float(given) if given.isdecimal() else 0.0
                return f"{url} answered {answer.status}", again_s if answer.status in _AGAIN else None
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            return f"{url}: {type(e).__name__} {e}".rstrip(), 0.0

    async def close(self) -> None:
        """Send once what waits, and wait for no collector that does not answer."""
        if self._waiting and not self._failing:
            try:
                async with asyncio.timeout(2.0):
                    while self._waiting:
                        await self.flush_one()
            except TimeoutError:
                self.dropped += len(self._waiting)
        if self._session is not None:
            await self._session.close()
