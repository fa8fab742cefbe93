"""A real pool of relay workers around scripted upstreams, and a client that sees every byte."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llmgw_router.core.config import INTERACTIVE, Limits, RoutingProfile, Telemetry, WorkerConfig
from llmgw_router.relay.ipc import AccessRecord, EndpointRow, ModelRow, TableUpdate
from llmgw_router.supervisor.workers import PoolConfig, WorkerPool

STEP_S = 30.0

CHAT = b"/v1/chat/completions"
#: The least that the router takes for a request, of the model that `endpoint` serves.
BODY = b'{"model":"m","messages":[]}'


@dataclass
class Heard:
    """What the pool told its supervisor."""

    wants: list[tuple[str, int]] = field(default_factory=list)
    unwants: list[str] = field(default_factory=list)
    applies: list[int] = field(default_factory=list)
    drained_ids: list[str] = field(default_factory=list)
    records: list[AccessRecord] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self, model: str, waiting: int) -> None:
        self.wants.append((model, waiting))
        self.changed.set()

    def unwant(self, model: str) -> None:
        self.unwants.append(model)
        self.changed.set()

    def applied(self, seq: int) -> None:
        self.applies.append(seq)
        self.changed.set()

    def drained(self, endpoint_ids: frozenset[str]) -> None:
        self.drained_ids.extend(sorted(endpoint_ids))
        self.changed.set()

    def access(self, records: Sequence[AccessRecord]) -> None:
        self.records.extend(records)
        self.changed.set()


@dataclass
class Router:
    pool: WorkerPool
    heard: Heard

    @property
    def port(self) -> int:
        return self.pool.addresses[0].port

    async def push(self, endpoints: Sequence[EndpointRow] = (), models: Sequence[ModelRow] = ()) -> None:
        """Push a table and wait until every worker picks from it."""
        before = len(self.heard.applies)
        self.pool.push_table(TableUpdate(endpoints=tuple(endpoints), models=tuple(models)))
        await self.until(lambda: len(self.heard.applies) > before)

    async def until(self, true: "object") -> None:
        """Wait until a condition on what was heard, or on the slots, holds."""
        assert callable(true)
        async with asyncio.timeout(STEP_S):
            while not true():
                self.heard.changed.clear()
                try:
                    # What is heard wakes us; the slots are memory, and tell nobody.
                    await asyncio.wait_for(self.heard.changed.wait(), 0.01)
                except TimeoutError:
                    continue

    def quiet(self) -> bool:
        """Nothing runs anywhere. An answer's last byte can be read a moment before its slot is given back."""
        return all(activity.in_flight == 0 for _, activity in self.pool.activity())

    async def client(self) -> "Client":
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))


#: Deadlines a test can wait for, and a sweep that is exact to a few milliseconds.
QUICK = Limits(sweep_s=0.02)
PROFILE = RoutingProfile()


@asynccontextmanager
async def router(
    tmp_path: Path,
    *ports: int,
    models: Sequence[ModelRow] = (),
    limits: Limits = QUICK,
    profile: RoutingProfile = PROFILE,
    config: WorkerConfig | None = None,
    workers: int = 1,
    access_log: bool = False,
    cold_socket: str | None = None,
    usage_folder: Path | None = None,
) -> AsyncIterator[Router]:
    """A pool whose endpoints e0, e1 … on `ports` serve model `m`.

    `config` is taken as it is; without one it is made of `limits`, `profile` and `access_log`."""
    if config is None:
        config = WorkerConfig(
            limits=limits, profiles={INTERACTIVE: profile}, telemetry=Telemetry(access_log=access_log)
        )
    heard = Heard()
    pool = WorkerPool(
        PoolConfig(
            workers=workers,
            host="127.0.0.1",
            port=0,
            cold_socket=cold_socket or str(tmp_path / "cold.sock"),
            config=config,
            slot_capacity=16,
            usage_folder=None if usage_folder is None else lambda _port: usage_folder,
        ),
        heard,
    )
    made = Router(pool, heard)
    await pool.start()
    try:
        await made.push([endpoint(index, port) for index, port in enumerate(ports)], models)
        yield made
    finally:
        await pool.stop()
        pool.close()


def endpoint(
    index: int, port: int, *, model: str = "m", draining: bool = False, credential: str | None = None
) -> EndpointRow:
    return EndpointRow(
        endpoint_id=f"e{index}@1",
        replica_id=f"e{index}",
        group_epoch=1,
        model=model,
        host="127.0.0.1",
        port=port,
        draining=draining,
        credential=credential,
    )


@dataclass(frozen=True)
class Answer:
    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    #: The body without its framing.
    body: bytes
    #: Whether the framing's own end was seen: the last chunk, the whole length.
    complete: bool

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def one(self, name: bytes) -> bytes:
        (value,) = self.all(name)
        return value


class Client:
    """A raw client: writes what it is told, reads answers and their framing itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes, *, path: bytes = CHAT, more: bytes = b"") -> None:
        head = b"POST %b HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n" % path
        self.send(head + b"%bcontent-length: %d\r\n\r\n%b" % (more, len(body), body))

    async def line(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n"), STEP_S)

    async def head(self) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), STEP_S)
        first, *rest = raw[:-4].split(b"\r\n")
        _, status, reason = first.split(b" ", 2)
        headers = [(name, value.strip()) for name, _, value in (field.partition(b":") for field in rest)]
        return int(status), reason, headers

    async def answer(self, *, to_head: bool = False) -> Answer:
        """One whole answer, however it ends. A missing end shows as `complete` False."""
        status, reason, headers = await self.head()
        low = {name.lower(): value for name, value in headers}
        if to_head or status in (204, 304):
            return Answer(status, reason, headers, b"", complete=True)
        if b"content-length" in low:
            try:
                body = await asyncio.wait_for(self.reader.readexactly(int(low[b"content-length"])), STEP_S)
            except asyncio.IncompleteReadError as short:
                return Answer(status, reason, headers, short.partial, complete=False)
            except ConnectionError:
                return Answer(status, reason, headers, b"", complete=False)
            return Answer(status, reason, headers, body, complete=True)
        if low.get(b"transfer-encoding") == b"chunked":
            body, complete = await self._chunks()
            return Answer(status, reason, headers, body, complete)
        try:
            body = await asyncio.wait_for(self.reader.read(-1), STEP_S)
        except ConnectionError:
            return Answer(status, reason, headers, b"", complete=False)
        return Answer(status, reason, headers, body, complete=True)

    async def chunk(self) -> bytes:
        """One chunk's payload; b"" for the last."""
        size = int(await self.line(), 16)
        payload = await asyncio.wait_for(self.reader.readexactly(size + 2), STEP_S)
        assert payload.endswith(b"\r\n")
        return payload[:-2]

    async def _chunks(self) -> tuple[bytes, bool]:
        got: list[bytes] = []
        try:
            while piece := await self.chunk():
                got.append(piece)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b"".join(got), False
        return b"".join(got), True

    async def ended(self) -> bool:
        """Wait for the router's close; True for an orderly one, False for a reset."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), STEP_S) == b""
        except ConnectionError:
            return False
