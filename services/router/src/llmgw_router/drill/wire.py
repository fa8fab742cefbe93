"""A client that reads its own framing: nothing between the check and the bytes on the wire."""

import asyncio
import base64
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llmgw_router.drill.engine import MODEL

#: No step of an exchange may take longer, unless a drill says otherwise.
STEP_S = 10.0


class Broken(Exception):
    """A rule does not hold; says what was seen."""


class Unreachable(Exception):
    """The router does not answer at all: there is nothing to judge."""


class Misplaced(Exception):
    """There is a router, and it is not one that a drill can be done on as it was asked for."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(what)
        self.next_step = next_step


@dataclass(frozen=True)
class Answer:
    """One answer, however it ended."""

    status: int
    headers: list[tuple[bytes, bytes]]
    #: Without its framing.
    body: bytes
    #: The framing's own end was seen: the last chunk, or the whole length.
    complete: bool
    #: When each read of the body came, in seconds after the request left.
    times: list[float] = field(default_factory=list)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def get(self, name: bytes) -> bytes | None:
        found = self.all(name)
        return found[0] if found else None

    def json(self) -> Any:
        """The body of a 200. Raises Broken."""
        if self.status != 200:
            raise Broken(f"answered {self.status}: {self.body[:160]!r}")
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            raise Broken(f"answered what is no JSON: {self.body[:160]!r}") from None

    def error(self) -> dict[str, object]:
        """The error object in OpenAI's shape. Raises Broken when it is none."""
        try:
            error = msgspec.json.decode(self.body)["error"]
        except (msgspec.DecodeError, TypeError, KeyError):
            raise Broken(
                f"status {self.status} without an OpenAI error object: {self.body[:120]!r}"
            ) from None
        if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
            raise Broken(f"the error object lacks message, type, param or code: {self.body[:160]!r}")
        if not isinstance(error["message"], str) or not isinstance(error["code"], str | None):
            raise Broken(f"the error's message must be text and its code text or null: {error!r}")
        return error


class Connection:
    """One connection to the router."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, step_s: float = STEP_S
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.step_s = step_s

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Status and headers of the next answer. Raises Broken when none comes."""
        try:
            raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), self.step_s)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Broken("the connection was closed without an answer") from None
        except TimeoutError:
            raise Broken(f"no answer within {self.step_s:g} s") from None
        first, *rest = raw[:-4].split(b"\r\n")
        parts = first.split(b" ", 2)
        if len(parts) < 2 or not parts[1].isdigit():
            raise Broken(f"the status line is {first[:60]!r}")
        return int(parts[1]), [(k, v.strip()) for k, _, v in (line.partition(b":") for line in rest)]

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """One whole answer."""
        began = asyncio.get_running_loop().time()
        status, headers = await self.head()
        body, times = bytearray(), []
        complete = True

        async def read(size: int) -> None:
            data = await asyncio.wait_for(self.reader.readexactly(size), self.step_s)
            times.append(asyncio.get_running_loop().time() - began)
            body.extend(data)

        low = {name.lower(): value for name, value in headers}
        try:
            if bodiless or status in (204, 304):
                pass
            elif b"content-length" in low:
                await read(int(low[b"content-length"]))
            elif low.get(b"transfer-encoding", b"").lower() == b"chunked":
                while size := int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), self.step_s), 16):
                    await read(size)
                    await self.reader.readexactly(2)
                await asyncio.wait_for(self.reader.readuntil(b"\r\n"), self.step_s)
            else:
                complete = False
                body.extend(await asyncio.wait_for(self.reader.read(), self.step_s))
        except asyncio.IncompleteReadError as short:
            body.extend(short.partial)
            complete = False
        except (ConnectionError, ValueError):
            complete = False
        except TimeoutError:
            raise Broken(f"the answer stood still for {self.step_s:g} s after {len(body)} bytes") from None
        return Answer(status, headers, bytes(body), complete, times)

    async def closed(self) -> bool:
        """Whether the router closes this connection now, with nothing more to say."""
        try:
            return await asyncio.wait_for(self.reader.read(1), self.step_s) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


@dataclass(frozen=True, kw_only=True)
class Router:
    """The router under test."""

    host: str
    port: int
    tls: bool = False
    key: str | None = None
    model: str = MODEL
    #: Longest wait for any step of an exchange.
    step_s: float = STEP_S

    async def connect(self) -> Connection:
        """A connection. Raises Unreachable."""
        context = ssl.create_default_context() if self.tls else None
        try:
            async with asyncio.timeout(self.step_s):
                pair = await asyncio.open_connection(
                    self.host, self.port, ssl=context, limit=64 * 1024 * 1024
                )
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{self.host}:{self.port} cannot be reached: {error or 'time-out'}") from None
        return Connection(*pair, self.step_s)

    def request(
        self,
        body: bytes,
        *,
        path: bytes = b"/v1/chat/completions",
        more: Sequence[bytes] = (),
        method: bytes = b"POST",
    ) -> bytes:
        """A request as bytes, with what every request of a drill carries."""
        lines = [b"%b %b HTTP/1.1" % (method, path), b"host: drill", *more]
        if self.key is not None:
            lines.append(b"authorization: Bearer " + self.key.encode())
        if body or method == b"POST":
            lines += [b"content-type: application/json", b"content-length: %d" % len(body)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    async def ask(
        self,
        body: bytes,
        *,
        path: bytes = b"/v1/chat/completions",
        more: Sequence[bytes] = (),
        method: bytes = b"POST",
    ) -> Answer:
        """One request on a connection of its own."""
        async with await self.connect() as connection:
            connection.send(self.request(body, path=path, more=more, method=method))
            return await connection.answer(bodiless=method == b"HEAD")

    def body(self, drill: object, **more: object) -> bytes:
        return msgspec.json.encode({"model": self.model, **more, "drill": drill})

    def play(
        self, *sends: bytes, end: str = "keep", gap_ms: float = 0, tag: str = "", **more: object
    ) -> bytes:
        """A body whose script sends these bytes, with pauses between them."""
        steps = [{"send": base64.b64encode(data).decode(), "wait_ms": gap_ms} for data in sends]
        return self.body({"steps": steps, "end": end, "tag": tag}, **more)

    async def echo(
        self, body: bytes, *, path: bytes = b"/v1/chat/completions", more: Sequence[bytes] = ()
    ) -> "Echo":
        """What the engine saw of a request whose body asks for it. Raises Broken."""
        answer = await self.ask(body, path=path, more=more)
        try:
            return msgspec.convert(answer.json(), Echo)
        except msgspec.ValidationError:
            raise Broken(f"the engine answered, and this came: {answer.body[:160]!r}") from None


class Echo(msgspec.Struct):
    """A request as the scripted engine saw it."""

    line: str
    headers: list[tuple[str, str]]
    sha256: str
    bytes: int

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]
