"""An upstream that does as it is told, request by request: raw HTTP/1.1, so that it can lie and break off."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote


@dataclass
class Request:
    """One request as it came, names of headers in lower case."""

    path: str
    headers: dict[str, str]

    @property
    def first_byte(self) -> int:
        """Where the asked range begins; 0 without one."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(match[1]) if match else 0


@dataclass
class Exchange:
    """What an act may do with one request."""

    upstream: "Upstream"
    request: Request
    writer: asyncio.StreamWriter

    @property
    def content(self) -> bytes:
        return self.upstream.files[self.request.path]

    @property
    def etag(self) -> str:
        return self.upstream.etags.get(self.request.path, '"first"')

    async def head(self, status: int, **headers: str | int) -> None:
        lines = [f"HTTP/1.1 {status} Scripted", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


Act = Callable[[Exchange], Awaitable[None]]


@dataclass
class Upstream:
    """Serves `files` properly, except where `acts` says otherwise: one act a request, first come."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    acts: deque[Act] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    #: Acts for one path only; they come before `acts`.
    acts_on: dict[str, Act] = field(default_factory=dict)
    #: Ends what stalls when the test is over.
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def put(self, path: str, content: bytes) -> str:
        """Returns its URL."""
        self.files[path] = content
        return self.url(path)

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(_header(line) for line in raw[1:] if line)
            request = Request(unquote(raw[0].split(" ")[1]), headers)
            if request.headers.get("user-agent") != "llmgw-mirror":
                # Another program of this machine, still asking for who had this port before.
                await Exchange(self, request, writer).head(404, Content_Length=0)
                return
            self.requests.append(request)
            act = self.acts_on.pop(request.path, None)
            if act is None:
                act = self.acts.popleft() if self.acts else honest
            await act(Exchange(self, request, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the mirror ended the transfer, as some acts want it to
        finally:
            writer.close()


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """On a port of the system's."""
    made = Upstream()
    server = await asyncio.start_server(made._serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.over.set()
        server.close()
        await asyncio.sleep(0)


# Acts.


async def honest(x: Exchange) -> None:
    """As a good server does: ranges, If-Range, a strong ETag."""
    size, first = len(x.content), x.request.first_byte
    if first and x.request.headers.get("if-range", x.etag) == x.etag:
        if first >= size:
            await x.head(416, Content_Range=f"bytes */{size}", Content_Length=0)
            return
        span = f"bytes {first}-{size - 1}/{size}"
        await x.head(206, Content_Length=size - first, Content_Range=span, ETag=x.etag)
        await x.send(x.content[first:])
        return
    await x.head(200, Content_Length=size, ETag=x.etag)
    await x.send(x.content)


def cut(after: int, *, etag: bool = True) -> Act:
    """Promise everything from where it was asked, send `after` bytes, close."""

    async def act(x: Exchange) -> None:
        size, first = len(x.content), x.request.first_byte
        tag = {"ETag": x.etag} if etag else {}
        if first:
            await x.head(
                206, Content_Length=size - first, Content_Range=f"bytes {first}-{size - 1}/{size}", **tag
            )
        else:
            await x.head(200, Content_Length=size, **tag)
        await x.send(x.content[first : first + after])

    return act


def stall(after: int) -> Act:
    """Send `after` bytes, then nothing, with the connection open."""

    async def act(x: Exchange) -> None:
        await cut(after)(x)
        await x.upstream.over.wait()

    return act


async def ignore_range(x: Exchange) -> None:
    """200 and everything, whatever was asked."""
    await x.head(200, Content_Length=len(x.content), ETag=x.etag)
    await x.send(x.content)


async def wrong_range(x: Exchange) -> None:
    """206, but for the file's beginning."""
    size = len(x.content)
    await x.head(206, Content_Length=size, Content_Range=f"bytes 0-{size - 1}/{size}", ETag=x.etag)
    await x.send(x.content)


def status(code: int, body: bytes = b"", **headers: str | int) -> Act:
    async def act(x: Exchange) -> None:
        await x.head(code, Content_Length=len(body), **headers)
        await x.send(body)

    return act


def redirect(to: str, code: int = 302) -> Act:
    return status(code, b"moved on, and this body must not be taken for the file", Location=to)


def offers(length: int) -> Act:
    """Promise another length than the file has."""

    async def act(x: Exchange) -> None:
        await x.head(200, Content_Length=length, ETag=x.etag)
        await x.send(x.content)

    return act


def corrupt(at: int) -> Act:
    """One wrong byte."""

    async def act(x: Exchange) -> None:
        spoiled = bytearray(x.content)
        spoiled[at] ^= 1
        first = x.request.first_byte
        if first:
            span = f"bytes {first}-{len(spoiled) - 1}/{len(spoiled)}"
            await x.head(206, Content_Length=len(spoiled) - first, Content_Range=span, ETag=x.etag)
        else:
            await x.head(200, Content_Length=len(spoiled), ETag=x.etag)
        await x.send(bytes(spoiled[first:]))

    return act


def chunked(*, extra: bytes = b"", cut_short: bool = False) -> Act:
    """No length; `extra` after the file's bytes; without the last chunk if cut short."""

    async def act(x: Exchange) -> None:
        await x.head(200, Transfer_Encoding="chunked", ETag=x.etag)
        for piece in (x.content, extra):
            if piece:
                await x.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if not cut_short:
            await x.send(b"0\r\n\r\n")

    return act


async def compressed(x: Exchange) -> None:
    await x.head(200, Content_Length=3, Content_Encoding="gzip")
    await x.send(b"\x1f\x8b\x08")


async def endless(x: Exchange) -> None:
    """HTTP/1.0 manners: no length, the end is the connection's."""
    await x.head(200)
    await x.send(x.content)


async def hang_up(x: Exchange) -> None:
    """Close without a word."""


def gate(opened: asyncio.Event, then: Act = honest) -> Act:
    """Answer only when the test says so."""

    async def act(x: Exchange) -> None:
        await opened.wait()
        await then(x)

    return act


async def silent(x: Exchange) -> None:
    """Take the request and say nothing."""
    await x.upstream.over.wait()
