"""Bytes for the parsers: whole messages, taken apart and put together wrongly; and what aiohttp reads."""

import asyncio
import itertools
import os
from dataclasses import dataclass
from typing import Any, cast

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy, HttpResponseParser
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from hypothesis import settings
from hypothesis import strategies as st

#: Cases of each differential; `make fuzz` asks for many.
deep = settings(max_examples=int(os.environ.get("LLMGW_FUZZ_CASES", "300")))

_ROOM = {"max_line_size": 1 << 20, "max_field_size": 1 << 20, "auto_decompress": False}


@dataclass(frozen=True)
class Read:
    """One message as a parser understood it."""

    #: Method and target, or the status.
    first: tuple[bytes, ...]
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


class _Protocol(asyncio.Protocol):
    """What aiohttp's streams want of a protocol."""

    _reading_paused = False

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        self._reading_paused = False


def _whole(message: Any, payload: Any) -> Read | None:
    body = b""
    if isinstance(payload, StreamReader) and payload is not EMPTY_PAYLOAD:
        if payload.exception() is not None or not payload.is_eof():
            return None
        body = b"".join(payload._buffer)
    headers = tuple((bytes(name), bytes(value)) for name, value in message.raw_headers)
    first: tuple[bytes, ...]
    if hasattr(message, "method"):
        first = (message.method.encode(), message.path.encode("utf-8", "surrogateescape"))
    else:
        first = (b"%d" % message.code,)
    return Read(first, headers, body)


def read_by_aiohttp(data: bytes, loop: asyncio.AbstractEventLoop, *, plain: bool = False) -> list[Read]:
    """The requests that aiohttp finds whole; `plain`: by its parser in Python. Fed byte by byte, so that an
    error does not hide what stands before it."""
    made = HttpRequestParserPy if plain else HttpRequestParser
    parser = made(cast(Any, _Protocol()), loop, 1 << 30, **cast(Any, _ROOM))
    pairs: list[Any] = []
    for at in range(len(data)):
        try:
            messages, upgraded, _ = parser.feed_data(data[at : at + 1])
        except (HttpProcessingError, AssertionError):
            break
        pairs.extend(messages)
        if upgraded:
            break
    reads = [_whole(*pair) for pair in pairs]
    return [one for one in reads if one is not None]


def response_by_aiohttp(data: bytes, loop: asyncio.AbstractEventLoop, *, closed: bool) -> Read | None:
    """The first response that aiohttp finds whole in `data`, after which the engine may have closed."""
    parser = HttpResponseParser(
        cast(Any, _Protocol()),
        loop,
        1 << 30,
        read_until_eof=True,
        response_with_body=True,
        **cast(Any, _ROOM),
    )
    pairs: list[Any] = []
    try:
        for at in range(len(data)):
            messages, _, _ = parser.feed_data(data[at : at + 1])
            pairs.extend(messages)
        if closed:
            parser.feed_eof()
    except (HttpProcessingError, AssertionError):
        pass
    for message, payload in pairs:
        if message.code >= 200:
            return _whole(message, payload)
    return None


BODY = b'{"model":"m"}'
LINES = [
    b"POST /v1/chat/completions HTTP/1.1\r\n",
    b"GET /v1/models HTTP/1.1\r\n",
    b"POST /v1/embeddings?a=1 HTTP/1.1\r\n",
    b"POST //v1/%63hat/../chat/completions/ HTTP/1.1\r\n",
    b"POST http://evil/v1/completions HTTP/1.1\r\n",
    b"POST /v1/completions HTTP/1.0\r\n",
    b"HEAD /v1/models HTTP/1.1\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n",
    b"POST /v1/completions\r\n",
    b"POST /v1/completions HTTP/1.2\r\n",
    b"post /v1/completions HTTP/1.1\r\n",
    b"POST /a b HTTP/1.1\r\n",
    b"POST  /v1/completions HTTP/1.1\r\n",
]
FIELDS = [
    b"host: r\r\n",
    b"Host: r\r\n",
    b"host:\r\n",
    b"content-length: 13\r\n",
    b"Content-Length: 13\r\n",
    b"content-length: 0\r\n",
    b"content-length: 013\r\n",
    b"content-length: +13\r\n",
    b"content-length: 13, 13\r\n",
    b"content-length: 1 3\r\n",
    b"content-length:\t13 \r\n",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding: Chunked\r\n",
    b"transfer-encoding: identity\r\n",
    b"transfer-encoding: chunked, chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n",
    b"transfer-encoding:\r\n",
    b"transfer-encoding : chunked\r\n",
    b"transfer-encoding: chunked;q=1\r\n",
    b"transfer-encoding: \x0bchunked\r\n",
    b"connection: close\r\n",
    b"connection: keep-alive\r\n",
    b"connection: content-length\r\n",
    b"connection: upgrade\r\n",
    b"connection: transfer-encoding, host\r\n",
    b"upgrade: websocket\r\n",
    b"upgrade: h2c\r\n",
    b"expect: 100-continue\r\n",
    b"content-encoding: gzip\r\n",
    b"x-a: 1\r\n",
    b"x-a: \xff\r\n",
    b"x-a: a\r\n b\r\n",
    b"x-a : 1\r\n",
    b": 1\r\n",
    b"x-a\r\n",
    b"x(a): 1\r\n",
    b"x-a: 1\n",
    b"x-a: a\rb\r\n",
    b"x-a: a\0b\r\n",
    b"content-length: 13\n",
    b"te: trailers\r\n",
    b"trailer: content-length\r\n",
    b"keep-alive: timeout=5\r\n",
    b"proxy-connection: close\r\n",
]
ENDS = [b"\r\n", b"\n", b"\r", b"\r\n\r\n", b""]
BODIES = [
    BODY,
    b"d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"5;x=y\r\n" + BODY[:5] + b"\r\n8\r\n" + BODY[5:] + b"\r\n0\r\nx: 1\r\n\r\n",
    b"0\r\n\r\n",
    b"0\r\ncontent-length: 5\r\n\r\n",
    b"d\n" + BODY + b"\n0\n\n",
    b"D \r\n" + BODY + b"\r\n0\r\n\r\n",
    b"0xd\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"-1\r\n",
    b"ffffffffffffffff\r\n",
    b"00000d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"d\r\n" + BODY + b"\r\n0\r\n",
    b"",
    BODY[:5],
]


def _put_together(parts: tuple[bytes, list[bytes], bytes, bytes]) -> bytes:
    line, fields, end, body = parts
    return line + b"".join(fields) + end + body


_usual = st.sampled_from(
    [b"host: r\r\ncontent-length: 13\r\n\r\n" + BODY]
    + [b"host: r\r\ntransfer-encoding: chunked\r\n\r\n" + body for body in BODIES]
)
_sound = st.tuples(st.sampled_from(LINES[:7]), _usual).map(b"".join)
_odd = st.tuples(
    st.sampled_from(LINES),
    st.lists(st.sampled_from(FIELDS), max_size=6),
    st.sampled_from(ENDS),
    st.sampled_from(BODIES),
).map(_put_together)
_nearly = st.tuples(
    st.sampled_from(LINES[:7]),
    st.lists(st.sampled_from(FIELDS), max_size=3).map(lambda fields: [FIELDS[0], *fields]),
    st.just(b"\r\n"),
    st.sampled_from(BODIES),
).map(_put_together)

_edit = st.tuples(
    st.integers(0, 400),
    st.integers(0, 8),
    st.sampled_from(
        [
            b"",
            b"\r",
            b"\n",
            b"\r\n",
            b" ",
            b"\t",
            b"\0",
            b":",
            b",",
            b"0",
            b"\xff",
            b"\x0b",
            b"chunked",
            b"host: x\r\n",
        ]
    ),
)


def _edited(pair: tuple[bytes, list[tuple[int, int, bytes]]]) -> bytes:
    data, edits = pair
    for at, gone, put in edits:
        at = min(at, len(data))
        data = data[:at] + put + data[at + gone :]
    return data


#: One or more requests in a row, sound and broken.
requests = st.tuples(
    st.lists(st.one_of(_sound, _nearly, _odd), min_size=1, max_size=3).map(b"".join),
    st.lists(_edit, max_size=2),
).map(_edited)


STATUS = [
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 200 OK\r\n",
    b"HTTP/1.1 204 No Content\r\n",
    b"HTTP/1.1 304 \r\n",
    b"HTTP/1.1 500\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 101 X\r\n",
    b"HTTP/1.1 2000 X\r\n",
    b"HTTP/2 200\r\n",
    b"200 OK\r\n",
]
#: What answers are made of: mostly what says where they end.
_FRAMING = [FIELDS[3], FIELDS[3], FIELDS[12], FIELDS[12], *FIELDS[3:27]]
#: An answer of an engine, sound or not.
responses = st.tuples(
    st.tuples(
        st.sampled_from(STATUS),
        st.lists(st.sampled_from(_FRAMING), max_size=3),
        st.sampled_from(ENDS),
        st.sampled_from(BODIES),
    ).map(_put_together),
    st.lists(_edit, max_size=2),
).map(_edited)

#: Where to cut what is sent.
cuts: st.SearchStrategy[list[int]] = st.one_of(
    st.just([]), st.lists(st.integers(1, 600), max_size=6).map(sorted), st.just(list(range(1, 700)))
)


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *(one for one in at if one < len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds) if a < b]
