"""What an engine says of itself over HTTP: ready, one real answer, how many requests it has."""

from collections.abc import Sequence

import aiohttp

from llmgw_agent.engines.base import Probe, parse_gauge
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import InvalidRequest, Unavailable

QUICK = aiohttp.ClientTimeout(total=2.0)
#: A first token of a large model on a cold GPU, compilation included.
PROBE = aiohttp.ClientTimeout(total=60.0)
#: A metrics page is some kilobytes; more is not one.
MOST_METRICS_BYTES = 4 << 20
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

    async def probe(self, at: HostPort, probes: Sequence[Probe], credential: str | None) -> str | None:
        """Tries each until one is answered with 200."""
        said = "there is no probe"
        for probe in probes:
            try:
                async with self._session.post(
                    f"http://{at}{probe.path}", json=probe.body, headers=_bearer(credential), timeout=PROBE
                ) as answer:
                    if answer.status == 200:
                        await answer.read()
                        return None
                    text = (await answer.content.read(300)).decode(errors="replace")
                    said = f"{probe.path} answers {answer.status}: {text}"
                    if answer.status not in _OTHER_KIND:
                        return said
            except (aiohttp.ClientError, OSError, TimeoutError) as e:
                return f"{probe.path}: {_why(e)}"
        return said

    async def running(self, at: HostPort, series: Sequence[str], credential: str | None) -> int:
        """Reads /metrics."""
        try:
            async with self._session.get(
                f"http://{at}/metrics", headers=_bearer(credential), timeout=QUICK, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise Unavailable(f"/metrics answers {answer.status}")
                page = bytearray()
                async for chunk in answer.content.iter_any():
                    page += chunk
                    if len(page) > MOST_METRICS_BYTES:
                        raise InvalidRequest(f"/metrics is longer than {MOST_METRICS_BYTES} bytes")
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise Unavailable(f"/metrics: {_why(e)}") from None
        return parse_gauge(page.decode(errors="replace"), series)


def _bearer(credential: str | None) -> dict[str, str]:
    return {} if credential is None else {"Authorization": f"Bearer {credential}"}


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
