"""The suite as processes: embedded servers and any set of services on them, for the lab and for tests."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from llmgw_kit.testing.embedded import EmbeddedPostgres, EmbeddedRedis
from llmgw_kit.testing.processes import Cage, Child, ChildFailed
from llmgw_lab import config
from llmgw_lab.layout import CONTROLLERS, Layout, Node, lab_nodes
from llmgw_lab.leftovers import MARK
from llmgw_lab.operator import Operator

#: From exec to ready on a busy machine; imports alone take a second.
READY_TIMEOUT_S = 120.0
#: Between two looks at a service that is starting.
POLL_S = 0.1
#: Three ticks of the router, and the controller's next look.
AT_REST_S = 5.0
STOP_GRACE_S = 15.0
ENGINE_GRACE_S = 3.0


@dataclass(eq=False)
class Suite:
    """One cluster of processes. Start what is needed with `start`, in any order; `close` ends all."""

    cage: Cage
    layout: Layout
    #: Catalog entries (docs/catalog.md); see llmgw_lab.models.
    models: Sequence[dict[str, Any]]
    #: None: the two of the lab.
    given_nodes: Sequence[Node] | None = None
    #: Settings over those of config.py, by part ("controller-1") or by kind ("controller").
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    children: dict[str, Child] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.postgres = EmbeddedPostgres(self.cage, self.layout.data("postgres"))
        self.redis = EmbeddedRedis(self.cage, self.layout.data("redis"))

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, each with an agent."""
        return self.given_nodes or lab_nodes(self.layout.first_engine_port)

    @property
    def agents(self) -> list[str]:
        """Part names of the agents: their node ids."""
        return [node.node_id for node in self.nodes]

    @property
    def parts(self) -> list[str]:
        """All services, in an order that starts quietly."""
        return ["mirror", *CONTROLLERS, *self.agents, "router"]

    def kind(self, part: str) -> str:
        """controller-1 is a controller, lab-1 an agent."""
        if part in self.agents:
            return "agent"
        return "controller" if part in CONTROLLERS else part

    def environment(self) -> dict[str, str]:
        """Ours, without what would configure a service behind our back, with the lab's mark."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
        return kept | {MARK: str(self.layout.folder), "PYTHONUNBUFFERED": "1"}

    async def start(self, *parts: str) -> None:
        """Write the configuration of each part and start it; does not wait for readiness."""
        for part in parts:
            await asyncio.to_thread(self._start_one, part)

    def _start_one(self, part: str) -> None:
        kind = self.kind(part)
        made = self._configuration(part)
        settings = made.settings | dict(self.settings.get(kind, {})) | dict(self.settings.get(part, {}))
        path = self.layout.config(made.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        # By rename: the other controller may be reading the same file just now.
        beside = path.with_suffix(".part")
        beside.touch(mode=0o600)  # the DSN in it holds a password
        beside.write_text(yaml.safe_dump(settings, sort_keys=False))
        beside.replace(path)
        self.children[part] = self.cage.spawn(
            part,
            [command(f"llmgw-{kind}"), "serve", "--config", str(path)],
            log=self.layout.log(part),
            cwd=self.layout.folder,
            env=self.environment() | dict(made.environment),
        )

    def _configuration(self, part: str) -> config.Configuration:
        dsn, redis_url = self.postgres.dsn(), self.redis.url
        if part == "router":
            return config.router(self.layout, dsn=dsn, redis_url=redis_url)
        if part == "mirror":
            return config.mirror(self.layout, dsn=dsn, models=self.models)
        if part in CONTROLLERS:
            return config.controller(self.layout, part, dsn=dsn, redis_url=redis_url, models=self.models)
        return config.agent(self.layout, next(node for node in self.nodes if node.node_id == part))

    async def until_ready(self, *parts: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until each answers 200 on /readyz. Raises ChildFailed with the words of one that does not."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            await asyncio.gather(*(self._until_ready(http, part, timeout_s) for part in parts))

    async def _until_ready(self, http: aiohttp.ClientSession, part: str, timeout_s: float) -> None:
        url = f"http://{self.layout.address('router' if part == 'router' else f'{part}-admin')}/readyz"
        deadline = time.monotonic() + timeout_s
        why = "it does not listen"
        while time.monotonic() < deadline:
            child = self.children[part]
            if child.code is not None:
                raise ChildFailed(self.obituary(part))
            try:
                async with http.get(url) as answer:
                    if answer.status == 200:
                        return
                    why = (await answer.text()).strip()
            except (aiohttp.ClientError, TimeoutError) as problem:
                why = f"{type(problem).__name__}: {problem}"
            await asyncio.sleep(POLL_S)
        child = self.children[part]
        raise ChildFailed(
            f"{part} is not ready after {timeout_s:g} s ({url}: {why})\n"
            f"its last lines, from {child.log}:\n{indented(child.tail())}"
        )

    async def until_at_rest(self, model: str) -> None:
        """Wait until the views have heard that the last request of the model is over; a few ticks at most."""
        async with Operator(self.layout.controllers.split(",")) as operator:
            try:
                async with asyncio.timeout(AT_REST_S):
                    while not await operator.at_rest(model):
                        await asyncio.sleep(POLL_S)
            except TimeoutError:
                return  # somebody else asks it: the views will say so

    async def until_heard(self, *nodes: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the leader hears these agents: an agent is ready before it has found the leader, and a
        request may come before any node is known. Raises ChildFailed."""
        deadline = time.monotonic() + timeout_s
        async with Operator(self.layout.controllers.split(",")) as operator:
            while missing := set(nodes) - await operator.heard_nodes():
                if time.monotonic() > deadline:
                    logs = ", ".join(str(self.layout.log(node)) for node in sorted(missing))
                    raise ChildFailed(
                        f"no controller hears {', '.join(sorted(missing))} after {timeout_s:g} s; "
                        f"what they say is in {logs}"
                    )
                await asyncio.sleep(POLL_S)

    def ending(self, part: str) -> str:
        """How a part ended."""
        code = self.children[part].code
        if code is not None and code < 0:
            return f"{part} ended by {signal.Signals(-code).name}"
        return f"{part} ended with exit code {code}"

    def obituary(self, part: str) -> str:
        """How a part ended, its last lines, and where the rest is."""
        child = self.children[part]
        return f"{self.ending(part)}; its last lines, from {child.log}:\n{indented(child.tail())}"

    async def stop(self, *parts: str, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM to all of them at once, then SIGKILL to the process groups of those that stay."""
        running = [self.children[part] for part in parts if part in self.children]
        await asyncio.gather(*(asyncio.to_thread(child.stop, grace_s=grace_s) for child in running))

    async def kill(self, part: str) -> None:
        """`kill -9` of the service's process alone, and wait until it is gone."""
        self.children[part].kill()
        await self.children[part].wait(10)

    async def ctl(self, *arguments: str, timeout_s: float = 30.0) -> tuple[int, str]:
        """Run llmgwctl against both controllers: exit code and what it printed."""
        log = self.layout.log("llmgwctl")
        log.unlink(missing_ok=True)
        argv = [command("llmgwctl"), "--controller", self.layout.controllers, *arguments]
        child = await asyncio.to_thread(
            lambda: self.cage.spawn(
                "llmgwctl", argv, log=log, cwd=self.layout.folder, env=self.environment() | {"NO_COLOR": "1"}
            )
        )
        code = await child.wait(timeout_s)
        return code, log.read_text()

    async def stop_engines(self) -> None:
        """Engines outlive their agents by design: end them by what the agents' journals say, politely."""
        await asyncio.gather(*(self._stop_engines_of(part) for part in self.agents if part in self.children))

    async def _stop_engines_of(self, part: str) -> None:
        log = self.layout.log(f"{part}-stop-all")
        argv = [command("llmgw-agent"), "stop-all", "--config", str(self.layout.config(part))]
        argv += ["--grace-s", str(ENGINE_GRACE_S)]
        child = await asyncio.to_thread(
            lambda: self.cage.spawn(
                f"{part}-stop-all", argv, log=log, cwd=self.layout.folder, env=self.environment()
            )
        )
        # Whatever it says, the cage ends what is left.
        await child.wait(ENGINE_GRACE_S + STOP_GRACE_S)

    async def start_servers(self) -> None:
        """Postgres and Redis, which everything needs first."""
        await asyncio.gather(self.postgres.start(), self.redis.start())

    async def close(self) -> None:
        """Stop the services in order, then the engines, then the servers."""
        await self.stop("router")
        await self.stop(*(part for part in self.parts if part != "router"))
        await self.stop_engines()
        await asyncio.gather(self.redis.stop(), self.postgres.stop())

    async def __aenter__(self) -> Self:
        await self.start_servers()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def command(name: str) -> str:
    """A console script of the environment we run in, whatever PATH says."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise ChildFailed(f"{path} does not exist; make setup installs it")
    return str(path)


def indented(text: str) -> str:
    """For the middle of a message."""
    return "\n".join(f"    {line}" for line in text.splitlines()) or "    (nothing)"
