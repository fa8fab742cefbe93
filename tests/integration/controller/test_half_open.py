"""A stream that is open on both ends and dead in between: found by beats, on either side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from llmgw_kit.addresses import HostPort

from .controller_bench import MODEL, Controllers, until
from .test_session_failover import View, agent

#: Of the agent: two seconds without a beat, and up to one more before it calls.
NOTICED_S = 3.0
SLACK_S = 5.0


@dataclass(eq=False)
class Proxy:
    """Passes bytes between agents and a controller, until it is told to swallow them."""

    target: HostPort | None = None
    #: Of connections that are there, and of those that come.
    swallows_old: bool = False
    swallows_new: bool = False
    address: str = ""
    connections: int = 0
    #: Number of the newest connection when it was told to swallow.
    frozen_at: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self.target is not None
        self.connections += 1
        number = self.connections
        there_reader, there_writer = await asyncio.open_connection(self.target.host, self.target.port)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink, number))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, number: int) -> None:
        while data := await source.read(65536):
            if not self._swallows(number):
                sink.write(data)
                await sink.drain()
        sink.close()

    def _swallows(self, number: int) -> bool:
        return self.swallows_new if number > self.frozen_at else self.swallows_old

    def swallow(self, *, new: bool) -> None:
        """From now on nothing passes on the connections that are there; `new`: nor on those that come."""
        self.frozen_at, self.swallows_old, self.swallows_new = self.connections, True, new

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def proxied() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.close()
        server.close()


async def test_a_dead_stream_is_found_by_beats_on_both_sides(controllers: Controllers) -> None:
    view = View()
    async with proxied() as proxy:
        # Agents learn from the welcome where controllers are: there, too, they meet the proxy.
        controller = controllers.start(models=[MODEL], unreachable_after_s=3, advertise=proxy.address)
        proxy.target = controller.address
        await controller.until_leading()
        task = asyncio.create_task(agent(1, proxy.address, view).run())
        try:
            await until("a session", lambda: view.session)
            assert view.session is not None
            first = view.session.session_epoch
            await asyncio.sleep(1.2)  # a few beats

            # Only the connection that is there is dead: the agent calls anew and has a session again.
            proxy.swallow(new=False)
            began = time.monotonic()
            await until("another session", lambda: view.session and view.session.session_epoch > first)
            took_s = time.monotonic() - began
            print(f"\nhalf-open stream replaced after {took_s:.2f} s")
            assert took_s < NOTICED_S + SLACK_S
            assert (await controller.status()).nodes.heard == 1
            kinds = [event.kind for event in await controller.events()]
            assert "session_fenced" not in kinds, "the same agent, not two"

            # Nothing passes any more: both ends look open, and the node is silent for the controller.
            await asyncio.sleep(1.2)
            proxy.swallow(new=True)

            async def silent() -> bool:
                return (await controller.status()).nodes.silent == 1

            await until("the node is silent", silent, most_s=3 + SLACK_S)

            # And back, without a restart of anything.
            proxy.swallows_new = False
            proxy.frozen_at = 0

            async def heard() -> bool:
                return (await controller.status()).nodes.heard == 1

            await until("the node is heard again", heard)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
