"""One worker by hand, as its supervisor would hold it: the channel, and the loop it runs on."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest

from llmgw_router.core.config import Telemetry, WorkerConfig
from llmgw_router.relay import ipc
from llmgw_router.relay.slots import Slots

from .harness import QUICK, STEP_S, Client, endpoint
from .upstream import Upstream, answering, json_answer

BODY = b'{"model":"m"}'
PLAIN = (
    "import sys; sys.modules['uvloop'] = None; "
    "from llmgw_router.relay.worker import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass
class Held:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    port: int
    slots: Slots

    def tell(self, message: ipc.Down) -> None:
        self.writer.write(ipc.pack(message))

    async def heard(self) -> ipc.Up:
        length = int.from_bytes(await asyncio.wait_for(self.reader.readexactly(4), STEP_S), "big")
        return ipc.decode_up(await asyncio.wait_for(self.reader.readexactly(length), STEP_S))

    async def client(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))


@asynccontextmanager
async def held(*command: str) -> AsyncIterator[Held]:
    ours, theirs = socket.socketpair()
    slots = Slots.create(workers=1, capacity=4)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    fds = [theirs.fileno(), slots.fd, listener.fileno()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *(str(fd) for fd in fds), pass_fds=fds, stderr=asyncio.subprocess.PIPE
    )
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        yield Held(process, reader, writer, listener.getsockname()[1], slots)
    finally:
        writer.close()
        listener.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
        slots.close()


def configure(telemetry: Telemetry | None = None) -> ipc.Configure:
    config = WorkerConfig(limits=QUICK, telemetry=telemetry or Telemetry())
    return ipc.Configure(worker=0, workers=1, slot_capacity=4, cold_socket="/nowhere", config=config)


@pytest.mark.parametrize(
    "command", [("-m", "llmgw_router.relay.worker"), ("-c", PLAIN)], ids=["uvloop", "plain asyncio"]
)
async def test_it_serves_on_either_loop_and_leaves_by_drain(command: tuple[str, ...]) -> None:
    async with Upstream(answering(json_answer())) as up, held(*command) as worker:
        worker.tell(configure())
        row = endpoint(0, up.port)
        table = ipc.TableUpdate(endpoints=(msgspec.structs.replace(row, slot=2),), seq=1)
        worker.tell(table)
        assert await worker.heard() == ipc.Applied(seq=1, term=None, version=None)
        started = await worker.heard()
        assert started == ipc.Started(pid=worker.process.pid, worker=0)
        async with await worker.client() as c:
            for _ in range(3):
                c.post(BODY)
                assert (await c.answer()).status == 200
        assert worker.slots.activity(2).picks == 3
        worker.tell(ipc.Drain(deadline_s=5.0, grace_s=0.05))
        assert await asyncio.wait_for(worker.process.wait(), STEP_S) == 0
        # Counters are handed over with the last breath.
        assert worker.slots.totals()["answers_2xx"] == 3


async def test_it_does_not_listen_before_its_first_table() -> None:
    async with held("-m", "llmgw_router.relay.worker") as worker:
        worker.tell(configure())
        # The kernel completes the handshake; an answer needs the worker.
        c = await worker.client()
        c.post(BODY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(c.reader.read(1), 0.5)
        worker.tell(ipc.TableUpdate(seq=1))
        assert (await c.answer()).status == 404
        c.close()


async def test_nonsense_on_the_channel_ends_it() -> None:
    async with held("-m", "llmgw_router.relay.worker") as worker:
        worker.tell(configure())
        worker.tell(ipc.TableUpdate(seq=1))
        assert isinstance(await worker.heard(), ipc.Applied)
        assert isinstance(await worker.heard(), ipc.Started)
        worker.writer.write(b"\xff" * 64)
        assert await asyncio.wait_for(worker.process.wait(), STEP_S) == 0
        assert worker.process.stderr is not None
        assert b"ChannelBroken" in await worker.process.stderr.read()


async def test_a_supervisor_that_does_not_read_costs_records_not_memory() -> None:
    async with Upstream(answering(json_answer())) as up, held("-m", "llmgw_router.relay.worker") as worker:
        worker.tell(configure(Telemetry(access_log=True)))
        worker.tell(
            ipc.TableUpdate(endpoints=(msgspec.structs.replace(endpoint(0, up.port), slot=0),), seq=1)
        )
        assert isinstance(await worker.heard(), ipc.Applied)
        assert isinstance(await worker.heard(), ipc.Started)
        cast(asyncio.Transport, worker.writer.transport).pause_reading()
        path = b"/v1/models/" + b"x" * 20_000
        async with await worker.client() as c:
            async with asyncio.timeout(60):
                while not worker.slots.totals()["log_lines_dropped"]:
                    for _ in range(50):
                        c.send(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n" % path)
                        assert (await c.answer()).status == 503
            c.post(BODY)
            assert (await c.answer()).status == 200
        # What was kept arrives whole, and so does what must never be dropped.
        cast(asyncio.Transport, worker.writer.transport).resume_reading()
        worker.tell(ipc.TableUpdate(seq=2))
        while not isinstance(await worker.heard(), ipc.Applied):
            pass


async def test_stop_is_at_once() -> None:
    async with held("-m", "llmgw_router.relay.worker") as worker:
        worker.tell(configure())
        worker.tell(ipc.Stop())
        assert await asyncio.wait_for(worker.process.wait(), STEP_S) == 0
