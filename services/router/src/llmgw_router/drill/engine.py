"""An engine that does what its request says: sends these bytes, waits, cuts, resets. For drills only.

A request's body carries the script in a field that routers pass on unread:

    {"model": "llmgw-drill",
     "drill": {"tag": "t", "steps": [{"send": "<base64>"}, {"wait_ms": 20}], "end": "keep"}}

`end` is keep, close or reset. `{"drill": {"echo": true}}` answers with the request as it arrived, and
`{"drill": {"watch": "t"}}` with how requests of a tag ended. So a drill needs no way to the engine but the
router under test. Whoever can reach this engine can make it send anything: it listens on loopback by default.
"""

import asyncio
import base64
import hashlib
import socket
import struct
import time
from dataclasses import dataclass

import msgspec

MODEL = "llmgw-drill"

_RESET = struct.pack("ii", 1, 0)
#: A script may not hold a connection longer than this.
_MOST_S = 30.0
_MOST_BODY = 128 * 1024 * 1024


class Step(msgspec.Struct):
    """One of the two; both: bytes first."""

    send: str = ""
    wait_ms: float = 0


class Script(msgspec.Struct):
    """What a request asks for."""

    tag: str = ""
    steps: list[Step] = msgspec.field(default_factory=list)
    end: str = "keep"
    echo: bool = False
    watch: str | None = None


class _Body(msgspec.Struct):
    drill: Script = msgspec.field(default_factory=Script)


@dataclass
class Ended:
    """How the scripts of one tag ended."""

    started: int = 0
    finished: int = 0
    #: The router closed while a script still ran.
    aborted: int = 0
    #: time.monotonic() of the last abort, on the engine's machine.
    aborted_at: float | None = None


class _Gone(Exception):
    """The other side closed."""


class DrillEngine:
    """Serve until closed: `async with DrillEngine("127.0.0.1", 0) as engine`."""

    def __init__(self, host: str, port: int, *, model: str = MODEL) -> None:
        self._host = host
        self._port = port
        self._model = model
        self._ended: dict[str, Ended] = {}
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> "DrillEngine":
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_MOST_BODY)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, _Gone):
            # The router has no further use for this connection: nothing is owed on it.
            return
        finally:
            del self._open[task]
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        fields = [
            (name.strip(), value.strip()) for name, _, value in (line.partition(b":") for line in head[1:])
        ]
        length = next((int(value) for name, value in fields if name.lower() == b"content-length"), 0)
        body = await reader.readexactly(length)
        method, path, version = (*head[0].split(b" ", 2), b"", b"")[:3]
        if not version.startswith(b"HTTP/1."):
            # What a rule smuggled in got this far: it is nobody's request.
            raise _Gone
        if method == b"GET":
            writer.write(json_answer(self._page(path)))
            return True
        try:
            script = msgspec.json.decode(body, type=_Body).drill
        except msgspec.DecodeError:
            # The body is data of the drill: only its digest matters, and the answer says it.
            script = Script(echo=True)
        if script.echo:
            writer.write(json_answer(_echo(head[0], fields, body)))
            return True
        if script.watch is not None:
            writer.write(json_answer(_told(self._ended.get(script.watch, Ended()))))
            return True
        return await self._play(script, reader, writer)

    async def _play(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        ended = self._ended.setdefault(script.tag, Ended())
        ended.started += 1
        # A router sends nothing while it waits: what can be read is its leaving.
        gone = asyncio.ensure_future(reader.read(1))
        try:
            async with asyncio.timeout(_MOST_S):
                for step in script.steps:
                    if step.send:
                        writer.write(base64.b64decode(step.send))
                        await writer.drain()
                    if step.wait_ms:
                        done, _ = await asyncio.wait({gone}, timeout=step.wait_ms / 1000)
                        if done:
                            raise _Gone
        except (_Gone, ConnectionError, TimeoutError):
            ended.aborted += 1
            ended.aborted_at = time.monotonic()
            raise _Gone from None
        finally:
            gone.cancel()
            # A stream has one reader: the next request is read when this look-out has really ended.
            await asyncio.wait({gone})
        ended.finished += 1
        if script.end == "reset":
            sock = writer.get_extra_info("socket")
            assert isinstance(sock, socket.socket) or hasattr(sock, "setsockopt")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        return script.end == "keep"

    def _page(self, path: bytes) -> object:
        if path == b"/v1/models":
            return {"object": "list", "data": [{"id": self._model, "object": "model"}]}
        return {"status": "ok"}


def _echo(line: bytes, fields: list[tuple[bytes, bytes]], body: bytes) -> object:
    return {
        "object": "drill.echo",
        "line": line.decode("latin-1"),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in fields],
        "sha256": hashlib.sha256(body).hexdigest(),
        "bytes": len(body),
    }


def _told(ended: Ended) -> object:
    since = None if ended.aborted_at is None else (time.monotonic() - ended.aborted_at) * 1000
    return {
        "object": "drill.watch",
        "started": ended.started,
        "finished": ended.finished,
        "aborted": ended.aborted,
        "aborted_ms_ago": since,
    }


def json_answer(value: object) -> bytes:
    """A whole answer that keeps its connection."""
    content = msgspec.json.encode(value)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(content),
        content,
    )
