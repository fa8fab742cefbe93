"""Pieces over HTTP: from the mirror, from other nodes, and who those are.

What comes is not believed: the caller checks every piece against the mirror's hash of it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from llmgw_agent.core.weights import Listing, WeightsKey
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_kit.pieces import Layout, bits_from_hex, bits_to_hex

log = logging.getLogger(__name__)

#: What a mirror says whose disk does not let it hash pieces (llmgw_mirror's piece_hashes).
DISK_TROUBLE = "disk_trouble"
#: Small answers; and pieces, which may wait in line before their first byte.
SHORT = aiohttp.ClientTimeout(total=10.0, sock_connect=3.0)
PIECE = aiohttp.ClientTimeout(total=300.0, sock_connect=3.0, sock_read=20.0)
#: A mirror's piece size is held in memory several times.
PIECE_LEAST, PIECE_MOST = 1 << 10, 256 << 20
#: Others that are taken from one answer of the mirror.
PEERS_MOST = 64


class Busy(Unavailable):
    """It has no room for us now."""

    code_default = "busy"


@dataclass(frozen=True)
class Table:
    """How to check each piece: sha256 by number; None: the mirror is still making it."""

    layout: Layout
    hashes: tuple[bytes | None, ...]

    @property
    def known(self) -> int:
        """Pieces that can be checked."""
        return sum(1 << n for n, one in enumerate(self.hashes) if one is not None)


@dataclass(frozen=True)
class Others:
    """`have` by URL; how many of them are still fetching; when to speak again."""

    have: Mapping[str, int]
    fetching: int
    interval_s: float


class PieceClient:
    """`session` speaks to mirrors, `peers` to other nodes: those are known by their certificate alone."""

    def __init__(self, session: aiohttp.ClientSession, peers: aiohttp.ClientSession) -> None:
        self._session, self._peers = session, peers

    async def table(self, mirror: str, listing: Listing) -> Table | None:
        """None: this mirror offers no pieces, or its disk gives it none. Raises Unavailable."""
        try:
            async with self._session.get(_version(mirror, listing.key, "pieces"), timeout=SHORT) as answer:
                if answer.status in (404, 405):
                    return None
                said = await answer.read()
                if answer.status == 503 and _code(said) == DISK_TROUBLE:
                    log.warning("%s is fetched in whole files: mirror %s cannot hash it", listing.key, mirror)
                    return None
                if answer.status != 200:
                    raise Unavailable(f"mirror {mirror} answered {answer.status} for pieces of {listing.key}")
                body = json.loads(said)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            raise Unavailable(f"mirror {mirror}, pieces of {listing.key}: {_why(e)}") from None
        return parse_table(body, listing)

    async def speak(self, mirror: str, key: WeightsKey, url: str | None, have: int, count: int) -> Others:
        """Say what we have, if we share, and hear of others. Raises Unavailable, InvalidRequest."""
        body: dict[str, Any] = {} if url is None else {"url": url, "have": bits_to_hex(have, count)}
        answer = await self._post(mirror, key, "peers", body)
        try:
            told = answer["peers"][:PEERS_MOST]
            found = {_peer_url(one["url"]): bits_from_hex(one["have"], count, what="have") for one in told}
            return Others(found, int(answer["fetching"]), min(max(float(answer["interval_s"]), 1.0), 60.0))
        except (KeyError, TypeError, ValueError):
            raise Unavailable(f"mirror {mirror} speaks of peers in a way that is not understood") from None

    async def leave(self, mirror: str, key: WeightsKey, url: str) -> None:
        """Share no more. Raises Unavailable."""
        await self._post(mirror, key, "peers", {"url": url, "left": True})

    async def next(self, mirror: str, key: WeightsKey, lacks: int, layout: Layout) -> "Arriving":
        """One of the pieces we lack, of the mirror's choice. Raises Busy, Unavailable."""
        body = json.dumps({"lacks": bits_to_hex(lacks, layout.count)})
        answer = await _open(
            self._session.post(_version(mirror, key, "next"), data=body, timeout=PIECE), mirror
        )
        told = answer.headers.get("X-Llmgw-Piece", "")
        piece = int(told) if told.isascii() and told.isdigit() and len(told) < 10 else -1
        if not 0 <= piece < layout.count or not lacks >> piece & 1:
            answer.close()
            raise Unavailable(f"mirror {mirror} sends piece {told[:20]!r}, which was not asked for")
        return Arriving(answer, piece, layout.place(piece).length, mirror)

    async def of_peer(self, url: str, key: WeightsKey, piece: int, layout: Layout) -> "Arriving":
        """One piece of another node. Raises Busy, Unavailable."""
        answer = await _open(self._peers.get(_peer(url, key, f"pieces/{piece}"), timeout=PIECE), url)
        return Arriving(answer, piece, layout.place(piece).length, url)

    async def have(self, url: str, key: WeightsKey, count: int) -> int:
        """What another node has. Raises Unavailable."""
        try:
            async with self._peers.get(_peer(url, key), timeout=SHORT) as answer:
                if answer.status != 200:
                    raise Unavailable(f"{url} answered {answer.status} for {key}")
                body = json.loads(await answer.read())
            return bits_from_hex(body["have"], count, what=f"have of {url}")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as e:
            raise Unavailable(f"{url}: {_why(e)}") from None
        except InvalidRequest as e:
            raise Unavailable(e.text) from None

    async def _post(self, mirror: str, key: WeightsKey, word: str, body: Mapping[str, Any]) -> Any:
        try:
            async with self._session.post(
                _version(mirror, key, word), data=json.dumps(body), timeout=SHORT
            ) as answer:
                if answer.status != 200:
                    raise Unavailable(f"mirror {mirror} answered {answer.status} for {word} of {key}")
                return json.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            raise Unavailable(f"mirror {mirror}: {_why(e)}") from None


class Arriving:
    """A piece whose head has come. Close it, or read it."""

    def __init__(self, answer: aiohttp.ClientResponse, piece: int, length: int, source: str) -> None:
        self._answer, self.piece, self._length, self._source = answer, piece, length, source

    async def read(self) -> bytes:
        """Raises Unavailable when it broke off, or has another length."""
        try:
            data = await self._answer.content.readexactly(self._length)
            if not self._answer.content.at_eof() and await self._answer.content.read(1):
                raise Unavailable(f"{self._source} sends more of piece {self.piece} than there is")
        except (aiohttp.ClientError, OSError, EOFError, TimeoutError) as e:
            raise Unavailable(f"{self._source} broke off piece {self.piece}: {_why(e)}") from None
        finally:
            self.close()
        return data

    def close(self) -> None:
        """Ends the transfer, also in mid-body; a body that was read leaves its connection for the next."""
        if self._answer.content.at_eof():
            self._answer.release()
        else:
            self._answer.close()


async def _open(asking: Any, source: str) -> aiohttp.ClientResponse:
    try:
        answer: aiohttp.ClientResponse = await asking
    except (aiohttp.ClientError, OSError, TimeoutError) as e:
        raise Unavailable(f"{source}: {_why(e)}") from None
    if answer.status == 200:
        return answer
    status, after = answer.status, answer.headers.get("Retry-After", "")
    answer.close()
    if status in (429, 503):
        raise Busy(f"{source} is busy", retry_after_s=float(after[:4]) if after.isdigit() else None)
    raise Unavailable(f"{source} answered {status}")


def parse_table(body: Any, listing: Listing) -> Table:
    """The mirror's answer. Raises Unavailable when it does not fit what the mirror listed."""
    try:
        piece_bytes = body["piece_bytes"]
        by_path = {one["path"]: one for one in body["files"]}
        if not isinstance(piece_bytes, int) or not PIECE_LEAST <= piece_bytes <= PIECE_MOST:
            raise ValueError(f"pieces of {piece_bytes!r} bytes")
        layout = Layout(piece_bytes, [one.size for one in listing.files])
        hashes: list[bytes | None] = []
        for number, file in enumerate(listing.files):
            told, count = by_path[file.path], len(layout.of_file(number))
            if (told["size"], told["sha256"]) != (file.size, file.sha256):
                raise ValueError(f"{file.path} is another than listed")
            hashes += _hashes(told["pieces"], count)
    except (KeyError, TypeError, ValueError, LlmgwError) as e:
        raise Unavailable(f"the pieces of {listing.key} do not fit its listing: {e}") from None
    return Table(layout, tuple(hashes))


def _hashes(told: Sequence[str] | None, count: int) -> list[bytes | None]:
    if told is None:
        return [None] * count
    found: list[bytes | None] = [bytes.fromhex(one) for one in told]
    if len(found) != count or any(one is None or len(one) != 32 for one in found):
        raise ValueError(f"{len(found)} hashes where {count} are due")
    return found


def _code(said: bytes) -> str | None:
    """Of a refusal in the mirror's form; None: it has another."""
    try:
        code = json.loads(said)["error"]["code"]
    except (KeyError, TypeError, ValueError):
        return None
    return code if isinstance(code, str) else None


def _version(mirror: str, key: WeightsKey, word: str) -> URL:
    named = f"{quote(key.model, safe='')}/{quote(key.version, safe='')}"
    return URL(f"{mirror.rstrip('/')}/v1/weights/{named}/{word}", encoded=True)


def _peer(url: str, key: WeightsKey, rest: str = "") -> URL:
    named = f"{quote(key.model, safe='')}/{quote(key.version, safe='')}"
    return URL(f"{url}/v1/peers/{named}" + (f"/{rest}" if rest else ""), encoded=True)


def _peer_url(url: str) -> str:
    split = urlsplit(url)
    if split.scheme not in ("http", "https") or not split.hostname or not split.port or split.path:
        raise ValueError(f"{url!r} is no peer's URL")
    return url


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
