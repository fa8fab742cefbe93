"""A controller as a real process, and the peers that talk to it over real gRPC: an agent, a router, an
operator."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import yaml

from llmgw.v1 import (
    operator_pb2,
    operator_pb2_grpc,
)
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.errors import LlmgwError
from llmgw_kit.lifecycle import probe
from llmgw_kit.testing.ports import free_ports
from llmgw_kit.testing.processes import Cage, Child

#: Nothing here takes so long unless it hangs; the machine may be busy.
WAIT_S = 40.0

MODEL: dict[str, Any] = {
    "name": "tiny",
    "profiles": [
        {"engine": "command", "gpu_class": "L4", "command": ["engine", "{port}"], "drain_timeout_s": 5}
    ],
}


async def until(what: str, look: Callable[[], Any], *, most_s: float = WAIT_S) -> Any:
    """Look again and again until it is true (a coroutine is awaited); AssertionError with the last look when
    it never is."""
    deadline = time.monotonic() + most_s
    while True:
        seen: Any = look()
        if asyncio.iscoroutine(seen):
            seen = await seen
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what}: not within {most_s:g} s; last seen {seen!r}"
        await asyncio.sleep(0.02)


@dataclass(eq=False)
class Controller:
    """One process of `llmgw-controller serve`."""

    child: Child
    name: str
    address: HostPort
    admin: HostPort

    def ready(self) -> tuple[bool, str]:
        """What its readiness says."""
        return probe(self.admin)

    async def until_ready(self) -> Self:
        """Wait for it; shows its log when it ends first."""

        async def look() -> bool:
            assert self.child.code is None, (
                f"{self.name} ended with {self.child.code}:\n{self.child.tail(40)}"
            )
            return (await asyncio.to_thread(self.ready))[0]

        await until(f"{self.name} is ready", look)
        return self

    async def leader(self) -> operator_pb2.GetLeaderResponse:
        """Its answer to GetLeader."""
        channel = rpc.channel(self.address)
        try:
            stub = operator_pb2_grpc.OperatorServiceStub(channel)
            return await stub.GetLeader(operator_pb2.GetLeaderRequest(), timeout=5)
        finally:
            await channel.close()

    async def until_leading(self, *, most_s: float = WAIT_S) -> Self:
        """Wait until it leads."""

        async def look() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return (await self.leader()).leading
            return False

        await until(f"{self.name} leads", look, most_s=most_s)
        return self

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[operator_pb2_grpc.OperatorServiceAsyncStub]:
        """A stub; failed calls raise grpc's error (see `meant`)."""
        channel = rpc.channel(self.address)
        try:
            yield operator_pb2_grpc.OperatorServiceStub(channel)
        finally:
            await channel.close()

    async def status(self) -> operator_pb2.GetStatusResponse:
        """GetStatus."""
        async with self.operator() as stub:
            return await stub.GetStatus(operator_pb2.GetStatusRequest(), timeout=5)

    async def events(self) -> list[operator_pb2.Event]:
        """Newest first."""
        async with self.operator() as stub:
            return list((await stub.ListEvents(operator_pb2.ListEventsRequest(), timeout=5)).events)


def meant(e: grpc.aio.AioRpcError) -> LlmgwError:
    """What a failed call meant."""
    return rpc.error_from(e, peer="controller")


class Controllers:
    """Starts controllers in one test's folder."""

    def __init__(self, cage: Cage, folder: Path) -> None:
        self._cage = cage
        self._folder = folder
        self._numbers = itertools.count(1)
        self.started: list[Controller] = []

    def start(self, **settings: Any) -> Controller:
        """Spawn one; `settings` is its YAML file, over quick defaults."""
        name = settings.pop("name", f"controller-{next(self._numbers)}")
        grpc_port, admin_port = free_ports(2)
        address, admin = HostPort("127.0.0.1", grpc_port), HostPort("127.0.0.1", admin_port)
        values = {
            "name": name,
            "cluster": "test",
            "listen": str(address),
            "admin_listen": str(admin),
            "beat_interval_s": 0.5,
            "models": [MODEL],
            **settings,
        }
        address = parse_host_port(values["listen"], what="listen")
        admin = parse_host_port(values["admin_listen"], what="admin_listen")
        config = self._folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
        child = self._cage.spawn(
            name,
            [sys.executable, "-m", "llmgw_controller.main", "serve", "--config", str(config)],
            log=self._folder / f"{name}.log",
        )
        controller = Controller(child, name, address, admin)
        self.started.append(controller)
        return controller

    def stop_all(self) -> None:
        """Whatever still runs."""
        for controller in self.started:
            if controller.child.code is None:
                controller.child.stop(grace_s=8)
