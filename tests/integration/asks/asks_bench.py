"""A real controller and a real agent with scripted engines, for what operators ask of nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc.aio

from llmgw.v1 import operator_pb2
from llmgw_kit.addresses import HostPort
from tests.integration.agent.agent_bench import Agents
from tests.integration.controller.controller_bench import Controller, until

WAIT_S = 60.0


def model(name: str = "tiny", *knobs: str, **more: Any) -> dict[str, Any]:
    """Kept up, on the scripted engine."""
    engine = [sys.executable, "-m", "llmgw_kit.testing.engine", "--port", "{port}", "--served-name"]
    return {
        "name": name,
        "replicas": 1,
        "profiles": [
            {
                "name": "p", "engine": "command", "gpu_class": "LAB", "ready_path": "/health",
                "command": [*engine, "{served_name}", *knobs], "ready_timeout_s": 60, "stop_grace_s": 2,
                "drain_timeout_s": 2,
            }
        ],
        **more,
    }  # fmt: skip


@dataclass(eq=False)
class Node:
    """One node under one or more controllers."""

    controllers: list[Controller]
    agents: Agents
    #: Of its engines; agents of tests that run beside it would race for the same ones.
    engine_ports: str

    def start_agent(self) -> None:
        """The agent, or its successor."""
        addresses = (str(one.address) for one in self.controllers)
        self.agents.start(*addresses, LLMGW_AGENT_ENGINE_PORTS=self.engine_ports)

    @property
    def controller(self) -> Controller:
        """The first."""
        return self.controllers[0]

    async def until_ready(self, name: str = "tiny", *, most_s: float = WAIT_S) -> operator_pb2.ReplicaRow:
        """The model's replica once it serves."""
        return await until(f"{name} is ready", lambda: self._ready(name), most_s=most_s)  # type: ignore[no-any-return]

    async def _ready(self, name: str) -> operator_pb2.ReplicaRow | None:
        try:
            rows = (await self.controller.status()).replicas
        except grpc.aio.AioRpcError:
            return None  # nobody leads for a moment
        for row in rows:
            if row.model == name and row.phase == operator_pb2.REPLICA_PHASE_READY:
                return row
        return None

    def log(self, shard_id: str) -> Path:
        """Where its engine prints."""
        return self.agents.data / "logs" / f"{shard_id.replace('/', '%2F')}.log"

    async def figure(self, name: str, base: str | None = None) -> float | None:
        """One gauge of the agent, or of the listener at `base`; None while nobody answers."""
        base = base or await self.agents.admin()
        try:
            page = await asyncio.to_thread(lambda: urlopen(f"{base}/metrics", timeout=10).read().decode())
        except OSError:
            return None
        for line in page.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return None

    async def until_quiet(self) -> None:
        """Nothing is asked any more, at either end."""

        async def quiet() -> bool:
            admin: HostPort = self.controller.admin
            asks = await self.figure("llmgw_controller_node_asks", f"http://{admin}")
            return (await self.figure("llmgw_agent_commands"), asks) == (0.0, 0.0)

        await until("nothing is asked any more", quiet)


@dataclass(eq=False)
class Ctl:
    """`llmgwctl` as a process that goes on."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, controllers: list[Controller], *words: str) -> Ctl:
        """Type it."""
        addresses = ",".join(str(one.address) for one in controllers)
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "llmgw_controller.cli.main", "--controller", addresses, *words,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")},
            )
        )  # fmt: skip

    async def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), WAIT_S)).decode().rstrip("\n")

    async def until_line(self, text: str) -> str:
        """The next line with this in it."""
        while text not in (line := await self.line()):
            assert line, f"it ended, or said nothing, before {text!r}"
        return line

    def ctrl_c(self) -> None:
        """As a terminal does."""
        self.process.send_signal(signal.SIGINT)

    async def end(self) -> tuple[int, str, str]:
        """Status, and the rest of what it printed."""
        out, err = await asyncio.wait_for(self.process.communicate(), WAIT_S)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


async def leading(node: Node) -> Controller | None:
    """Who leads now."""
    for one in node.controllers:
        with contextlib.suppress(grpc.aio.AioRpcError):
            if (await one.leader()).leading:
                return one
    return None


async def ctl(node: Node, *words: str) -> tuple[int, str, str]:
    """One command to its end."""
    return await (await Ctl.start(node.controllers, *words)).end()
