"""The mirror's HTTP side: what a version consists of, and its files with ranges."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from llmgw_agent.adapters.threads import to_its_end
from llmgw_agent.adapters.weights_store import CHUNK_BYTES, PartialFile
from llmgw_agent.core.weights import Listing, WeightsFile, WeightsKey, parse_listing
from llmgw_kit.errors import Conflict, InvalidRequest, NotFound, Unavailable

#: A mirror that says nothing for so long is asked again, or another one is.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=60.0)


#: The mirror names its whole remaining time; its progress is looked at more often.
MOST_BETWEEN_LOOKS_S = 5.0


@dataclass(frozen=True)
class OnItsWay:
    """The mirror is still fetching it. Bytes are None where the mirror does not know."""

    retry_after_s: float
    received_bytes: int | None
    total_bytes: int | None


class MirrorClient:
    """One HTTP session for all mirrors. No proxy: the mirror is ours."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def listing(self, mirror: str, key: WeightsKey) -> Listing | OnItsWay:
        """Raises NotFound, Conflict (the mirror gave up on it), InvalidRequest (a hostile or broken
        listing), Unavailable (ask again or ask another)."""
        url = _url(mirror, key)
        try:
            async with self._session.get(url, timeout=TIMEOUT) as answer:
                body = await _json(answer)
                status, retry_after = answer.status, answer.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise Unavailable(f"mirror {mirror} does not answer: {_why(e)}") from None
        if status == 200:
            return parse_listing(body, key)
        said, state = _said(body), body.get("state") if isinstance(body, dict) else None
        if status == 503 and state is not None:
            assert isinstance(body, dict)
            return OnItsWay(
                min(_seconds(retry_after), MOST_BETWEEN_LOOKS_S),
                _count(body.get("received_bytes")),
                _count(body.get("total_bytes")),
            )
        if status == 404:
            raise NotFound(f"mirror {mirror} does not know {key}: {said}")
        if status == 400:
            raise InvalidRequest(f"mirror {mirror} refuses {key}: {said}")
        if state == "failed":
            raise Conflict(f"mirror {mirror} could not fetch {key}: {said}", code="mirror_failed")
        raise Unavailable(f"mirror {mirror} answered {status} for {key}: {said}")

    async def download(
        self,
        mirror: str,
        key: WeightsKey,
        file: WeightsFile,
        into: PartialFile,
        on_bytes: Callable[[int], None],
    ) -> None:
        """Append what is missing of one file. Raises Unavailable when it broke off (what came is kept),
        Conflict when the mirror now has another content, InvalidRequest when the disk is full."""
        if into.size == file.size:
            return
        headers = {"Accept-Encoding": "identity"}
        if into.size:
            headers |= {"Range": f"bytes={into.size}-", "If-Range": f'"{file.sha256}"'}
        url = _url(mirror, key, file.path)
        try:
            async with self._session.get(url, headers=headers, timeout=TIMEOUT) as answer:
                await self._take(answer, mirror, file, into, on_bytes)
        except (aiohttp.ClientError, TimeoutError) as e:
            raise Unavailable(f"mirror {mirror}, {file.path} of {key}: {_why(e)}") from None
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InvalidRequest(
                    f"disk full while writing {file.path} of {key}", code="disk_full"
                ) from None
            raise Unavailable(f"mirror {mirror}, {file.path} of {key}: {_why(e)}") from None
        if into.size < file.size:
            raise Unavailable(
                f"mirror {mirror} broke off {file.path} of {key} at {into.size} of {file.size} bytes"
            )

    async def _take(
        self, answer: aiohttp.ClientResponse, mirror: str, file: WeightsFile, into: PartialFile,
        on_bytes: Callable[[int], None],
    ) -> None:  # fmt: skip
        if answer.status == 416:
            await asyncio.to_thread(into.restart)
            raise Unavailable(f"mirror {mirror} has no bytes of {file.path} from {into.size} on")
        if answer.status not in (200, 206):
            raise Unavailable(f"mirror {mirror} answered {answer.status} for {file.path}")
        etag = answer.headers.get("ETag")
        if etag is not None and etag.removeprefix("W/") != f'"{file.sha256}"':
            raise Conflict(
                f"mirror {mirror} now has another {file.path} than it listed", code="listing_changed"
            )
        if answer.status == 200 and into.size:
            on_bytes(-into.size)
            await asyncio.to_thread(into.restart)
        elif answer.status == 206 and _range_start(answer.headers.get("Content-Range")) != into.size:
            raise Unavailable(f"mirror {mirror} answered another range of {file.path} than asked")
        pending = bytearray()
        try:
            async for chunk in _pieces(answer.content):
                if into.size + len(pending) + len(chunk) > file.size:
                    raise Conflict(
                        f"mirror {mirror} sends more of {file.path} than it listed", code="listing_changed"
                    )
                pending += chunk
                if len(pending) >= CHUNK_BYTES:
                    await self._write(into, pending, on_bytes)
        finally:
            # Also when it broke off: what came is right as far as it goes, and is resumed from.
            if pending:
                await self._write(into, pending, on_bytes)

    @staticmethod
    async def _write(into: PartialFile, pending: bytearray, on_bytes: Callable[[int], None]) -> None:
        # Taken out first: who is cancelled amid this write must not write the same once more.
        data = bytes(pending)
        pending.clear()
        await to_its_end(into.append, data)
        on_bytes(len(data))


async def _pieces(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """What comes, and of a link that breaks also what had come and was not read yet: aiohttp answers reads
    with the error first, and a link that breaks more often than a buffer fills would never get anywhere."""
    try:
        async for piece in content.iter_any():
            yield piece
    except (aiohttp.ClientError, OSError, TimeoutError):
        content.set_exception(None)  # type: ignore[arg-type]
        if left := content.read_nowait():
            yield left
        raise


def _url(mirror: str, key: WeightsKey, *path: str) -> URL:
    """Quoted by us and left as it is: a slash in a model's name is a part of one segment."""
    segments = [key.model, key.version, *(["files"] if path else [])]
    quoted = "/".join(quote(segment, safe="") for segment in segments)
    return URL(
        "/".join([f"{mirror.rstrip('/')}/v1/weights/{quoted}", *(quote(one) for one in path)]), encoded=True
    )


def _said(body: Any) -> str:
    """The mirror's own words, of its error object or of a failed version."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return str(error.get("message") or error.get("code") or "no reason given")
    return str(error or "no reason given")


async def _json(answer: aiohttp.ClientResponse) -> Any:
    try:
        return json.loads(await answer.read())
    except ValueError:
        return None


def _seconds(text: str | None) -> float:
    """Retry-After in seconds; 1 where it is absent or a date, and never so little that we would spin."""
    return min(max(float(text), 0.2), 60.0) if text is not None and text.isdigit() else 1.0


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _range_start(text: str | None) -> int | None:
    """Of `bytes 100-199/200` (RFC 9110 section 14.4)."""
    start = (text or "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else None


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
