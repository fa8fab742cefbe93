"""A whole router as a process, scripted engines beside it, and what the tests ask of both."""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from llmgw_kit.testing.ports import free_ports
from llmgw_kit.testing.processes import Cage, Child

from .routing_bench import BOUND_S, until

#: A start loads Python twice or more; on a machine with other work that takes its time.
START_S = 90.0

_LISTENS = re.compile(r"(client API|admin|metrics) on http://127\.0\.0\.1:(\d+)")


@dataclass
class RouterProcess:
    """Started with every listener on a port from the system; its own log tells which."""

    cage: Cage
    folder: Path
    child: Child
    ports: dict[str, int] = field(default_factory=dict)

    @classmethod
    def spawn(
        cls, cage: Cage, folder: Path, *flags: str, env: Mapping[str, str] | None = None
    ) -> "RouterProcess":
        """Start without waiting."""
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "router.log"
        log.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "llmgw_router.main", "serve", *flags]
        return cls(cage, folder, cage.spawn("router", argv, log=log, cwd=folder, env=env))

    @property
    def log(self) -> str:
        return self.child.log.read_text() if self.child.log.exists() else ""

    async def listening(self) -> "RouterProcess":
        """Until it has logged its listeners."""
        await until(
            lambda: "router-only mode" in self.log or "follows controllers" in self.log or self._ended(),
            "start of the router",
            within_s=START_S,
        )
        if self._ended():
            raise AssertionError(f"the router ended with {self.child.code}:\n{self.log}")
        self.ports = {name: int(port) for name, port in _LISTENS.findall(self.log)}
        return self

    def _ended(self) -> bool:
        return self.child.code is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['client API']}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['admin']}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['metrics']}"

    async def ready(self) -> "RouterProcess":
        """Until /readyz of the client port says so."""
        await self.listening()
        async with asyncio.timeout(START_S):
            while (await get(f"{self.url}/readyz")).status != 200:
                await asyncio.sleep(0.02)
        return self


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    method: str, url: str, *, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own, bounded; the path is sent as given."""
    data = None if body is None else json.dumps(body)
    timeout = aiohttp.ClientTimeout(total=BOUND_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, URL(url, encoded=True), data=data, headers=headers) as answer,
    ):
        return Answer(answer.status, answer.headers.copy(), await answer.read())


async def get(url: str) -> Answer:
    return await call("GET", url)


def chat(model: str, *, stream: bool = False) -> dict[str, object]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}


async def ask(router: RouterProcess, model: str) -> Answer:
    return await call("POST", f"{router.url}/v1/chat/completions", body=chat(model))


async def metric(url: str, name: str) -> float | None:
    """Value of one series, its labels as printed; None when it is absent."""
    for line in (await get(f"{url}/metrics")).body.decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    return None


async def metric_at_least(url: str, name: str, least: float) -> None:
    """Until a series says so: workers publish what they counted once a second."""
    async with asyncio.timeout(BOUND_S):
        while (await metric(url, name) or 0.0) < least:
            await asyncio.sleep(0.05)


async def start_engine(
    cage: Cage, folder: Path, *names: str, flags: tuple[str, ...] = ()
) -> tuple[Child, str]:
    """A scripted engine that is up, and its URL. Another port when somebody else took the first."""
    named = [part for name in names for part in ("--served-name", name)]
    async with asyncio.timeout(START_S):
        while True:
            [port] = free_ports(1)
            argv = [sys.executable, "-m", "llmgw_kit.testing.engine", "--port", str(port), *named, *flags]
            child = cage.spawn("engine", argv, log=folder / f"engine-{port}.log", cwd=folder)
            url = f"http://127.0.0.1:{port}"
            while child.code is None:
                if await _up(url):
                    return child, url
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def engine(cage: Cage, folder: Path, *names: str, flags: tuple[str, ...] = ()) -> AsyncIterator[str]:
    """A scripted engine for as long as the block lasts; gives its URL."""
    child, url = await start_engine(cage, folder, *names, flags=flags)
    try:
        yield url
    finally:
        await asyncio.to_thread(child.stop, grace_s=2.0)


async def _up(url: str) -> bool:
    try:
        async with asyncio.timeout(2.0):
            return (await get(f"{url}/health")).status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


LOOPBACK = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--workers", "1")


@contextlib.asynccontextmanager
async def running(cage: Cage, folder: Path, *flags: str) -> AsyncIterator[RouterProcess]:
    """A router for as long as the block lasts; ended hard if the block did not end it."""
    router = RouterProcess.spawn(cage, folder, *LOOPBACK, *flags)
    try:
        yield await router.listening()
    finally:
        if router.child.code is None:
            await asyncio.to_thread(router.child.stop, grace_s=5.0)
