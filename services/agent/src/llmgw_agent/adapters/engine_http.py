"""What an engine says of itself over HTTP: ready, one real answer, its version, what it works on."""

import json
from collections.abc import Sequence

import aiohttp

from llmgw_agent.core.progress import Numbers
from llmgw_agent.engines.base import Engine, Probe, VersionAsk, parse_numbers
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import InvalidRequest, Unavailable

QUICK = aiohttp.ClientTimeout(total=2.0)
#: A metrics page is some kilobytes; more is not one.
MOST_METRICS_BYTES = 4 << 20
MOST_VERSION_CHARS = 100
#: This path or kind of request does not exist there: another probe may be the right one.
_OTHER_KIND = frozenset({400, 404, 405, 422, 501})


class AiohttpEngine:
    """Over one shared session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ready(self, at: HostPort, path: str, credential: str | None) -> str | None:
        """One GET; any 2xx is ready."""
        try:
            async with self._session.get(
                f"http://{at}{path}", headers=_bearer(credential), timeout=QUICK, allow_redirects=False
            ) as answer:
                return None if answer.ok else f"{path} answers {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            return f"{path}: {_why(e)}"

    async def probe(
        self, at: HostPort, probes: Sequence[Probe], credential: str | None, *, patience_s: float
    ) -> str | None:
        """Tries each until one is answered with 200."""
        said = "there is no probe"
        patience = aiohttp.ClientTimeout(total=patience_s)
        for probe in probes:
            try:
                async with self._session.post(
                    f"http://{at}{probe.path}", json=probe.body, headers=_bearer(credential), timeout=patience
                ) as answer:
                    if answer.status == 200:
                        await answer.read()
                        return None
                    text = (await answer.content.read(300)).decode(errors="replace")
                    said = f"{probe.path} answers {answer.status}: {text}"
                    if answer.status not in _OTHER_KIND:
                        return said
            except TimeoutError:
                return f"{probe.path}: no answer within {patience_s:g} s"
            except (aiohttp.ClientError, OSError) as e:
                return f"{probe.path}: {_why(e)}"
        return said

    async def numbers(self, at: HostPort, engine: Engine, credential: str | None) -> Numbers:
        """Reads /metrics."""
        try:
            async with self._session.get(
                f"http://{at}/metrics", headers=_bearer(credential), timeout=QUICK, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise Unavailable(f"/metrics answers {answer.status}")
                page = await _page(answer, MOST_METRICS_BYTES, "/metrics")
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise Unavailable(f"/metrics: {_why(e)}") from None
        return parse_numbers(page.decode(errors="replace"), engine.gauge_series, engine.work_series)

    async def version(self, at: HostPort, asks: Sequence[VersionAsk], credential: str | None) -> str | None:
        """The first that is told; None when none is."""
        for ask in asks:
            try:
                async with self._session.get(
                    f"http://{at}{ask.path}",
                    headers=_bearer(credential),
                    timeout=QUICK,
                    allow_redirects=False,
                ) as answer:
                    if answer.status != 200:
                        continue
                    told = json.loads(await _page(answer, MOST_METRICS_BYTES, ask.path))
            except (aiohttp.ClientError, OSError, TimeoutError, InvalidRequest, ValueError):
                continue  # it does not tell, or not there
            version = told.get(ask.key) if isinstance(told, dict) else None
            if isinstance(version, str) and version:
                return version[:MOST_VERSION_CHARS]
        return None


async def _page(answer: aiohttp.ClientResponse, most_bytes: int, path: str) -> bytearray:
    page = bytearray()
    async for chunk in answer.content.iter_any():
        page += chunk
        if len(page) > most_bytes:
            raise InvalidRequest(f"{path} is longer than {most_bytes} bytes")
    return page


def _bearer(credential: str | None) -> dict[str, str]:
    return {} if credential is None else {"Authorization": f"Bearer {credential}"}


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
