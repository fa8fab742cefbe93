"""What the agent's integration tests stand on: a scripted controller, and agents as processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from llmgw.v1 import agent_pb2 as pb
from llmgw.v1 import agent_pb2_grpc
from llmgw_agent import engines_now
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.testing.ports import free_ports
from llmgw_kit.testing.processes import Cage, Child

#: Longest wait for anything in these tests; what it waits for takes a fraction.
PATIENCE_S = 60.0
LOOPBACK = "127.0.0.1"


async def eventually(check: Callable[[], Any], what: str, *, within_s: float = PATIENCE_S) -> Any:
    """The first true answer of `check`, which may be a coroutine function."""
    until = time.monotonic() + within_s
    while True:
        found = check()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"did not come about within {within_s:g} s: {what}")
        await asyncio.sleep(0.02)


@dataclass(eq=False)
class Link:
    """One stream of an agent, as the controller sees it."""

    hello: pb.Hello
    epoch: int
    term: int
    outgoing: asyncio.Queue[pb.ConnectResponse | None]
    results: list[pb.CommandResult] = field(default_factory=list)
    beats: int = 0
    #: Of each complete report: the Desired that it follows, and the shards in it.
    complete: list[tuple[int, list[str]]] = field(default_factory=list)
    epochs_heard: set[int] = field(default_factory=set)
    open: bool = True

    def say(self, term: int | None = None, **body: Any) -> None:
        """Queue one message under the link's term, or another."""
        self.outgoing.put_nowait(pb.ConnectResponse(term=self.term if term is None else term, **body))


@dataclass(eq=False)
class ScriptedController(agent_pb2_grpc.AgentServiceServicer):
    """Says what the test tells it to, and remembers what it hears."""

    term: int = 1
    beat_s: float = 0.2
    name: str = "controller-t"
    #: Called in place of Welcome when set: what to answer a Hello with.
    refuse: Callable[[pb.Hello], pb.ConnectResponse] | None = None
    #: Set: Connect is refused as a standby refuses it, naming this leader.
    standby_of: str | None = None
    links: list[Link] = field(default_factory=list)
    shards: dict[str, pb.ObservedShard] = field(default_factory=dict)
    #: Every state a shard was reported in, in order, without repetitions.
    history: dict[str, list[int]] = field(default_factory=dict)
    inventory: pb.Inventory | None = None
    devices: dict[str, pb.Device] = field(default_factory=dict)
    weights: list[pb.HeldWeights] = field(default_factory=list)
    version: int = 0
    desired: list[pb.WantedShard] | None = None
    address: str = ""
    calls: int = 0

    async def Connect(self, requests: AsyncIterator[pb.ConnectRequest], context: Any) -> AsyncIterator[Any]:
        """One stream."""
        from llmgw_kit.errors import NotLeader

        self.calls += 1
        if self.standby_of is not None:
            raise NotLeader(f"{self.name} stands by", leader_address=self.standby_of or None)
        first = await anext(requests)
        if self.refuse is not None:
            yield self.refuse(first.hello)
            return
        link = Link(first.hello, len(self.links) + 1, self.term, asyncio.Queue())
        self._observe(first.hello.shards)
        self._know(first.hello.inventory)
        self.weights = list(first.hello.weights)
        reading = asyncio.create_task(self._read(requests, link))
        welcome = pb.Welcome(
            session_epoch=link.epoch,
            beat_interval_s=self.beat_s,
            leader_name=self.name,
            controllers=[self.address],
        )
        link.say(welcome=welcome)
        if self.desired is not None:
            link.say(desired=pb.Desired(version=self.version, shards=self.desired))
        self.links.append(link)
        try:
            while (message := await link.outgoing.get()) is not None:
                yield message
        finally:
            link.open = False
            reading.cancel()

    async def _read(self, requests: AsyncIterator[pb.ConnectRequest], link: Link) -> None:
        async for message in requests:
            link.epochs_heard.add(message.session_epoch)
            match message.WhichOneof("body"):
                case "shard_status":
                    self._observe(message.shard_status.shards)
                    if message.shard_status.HasField("complete_after"):
                        names = [one.shard_id for one in message.shard_status.shards]
                        link.complete.append((message.shard_status.complete_after, names))
                case "inventory":
                    self._know(message.inventory)
                case "device_health":
                    self.devices |= {one.device_id: one for one in message.device_health.devices}
                case "weights_status":
                    self.weights = list(message.weights_status.weights)
                case "command_result":
                    link.results.append(message.command_result)
                case "beat":
                    link.beats += 1
        link.open = False
        link.outgoing.put_nowait(None)

    def _observe(self, shards: Any) -> None:
        for one in shards:
            self.shards[one.shard_id] = one
            states = self.history.setdefault(one.shard_id, [])
            if not states or states[-1] != one.state:
                states.append(one.state)

    def _know(self, inventory: pb.Inventory) -> None:
        self.inventory = inventory
        self.devices = {one.device_id: one for one in inventory.devices}

    def want(self, *shards: tuple[pb.ShardSpec, Any]) -> None:
        """Say the complete list to everybody connected, and to whoever connects later."""
        self.version += 1
        self.desired = [pb.WantedShard(spec=spec, wish=wish) for spec, wish in shards]
        for link in self.links:
            if link.open:
                link.say(desired=pb.Desired(version=self.version, shards=self.desired))

    @property
    def link(self) -> Link:
        """The latest."""
        return self.links[-1]

    async def shard(
        self, shard_id: str, check: Callable[[pb.ObservedShard], Any], what: str
    ) -> pb.ObservedShard:
        """Wait until the shard was reported as `check` wants it."""

        def seen() -> pb.ObservedShard | None:
            one = self.shards.get(shard_id)
            return one if one is not None and check(one) else None

        try:
            found: pb.ObservedShard = await eventually(seen, what)
        except AssertionError as e:
            raise AssertionError(f"{e}; last report: {self.shards.get(shard_id)}") from None
        return found

    async def in_state(self, shard_id: str, state: Any) -> pb.ObservedShard:
        """Wait until the shard was reported in this state."""
        return await self.shard(shard_id, lambda one: one.state == state, pb.ShardState.Name(state))


@asynccontextmanager
async def controller(*, listen_port: int = 0, **fields: Any) -> AsyncIterator[ScriptedController]:
    """A scripted controller that listens; on a port of the system's choice unless told."""
    scripted = ScriptedController(**fields)
    server = rpc.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(scripted, server)
    scripted.address = str(rpc.listen(server, HostPort(LOOPBACK, listen_port), flag="test"))
    await server.start()
    try:
        yield scripted
    finally:
        await server.stop(0)


@dataclass
class Agents:
    """Agents as processes, in a cage that reaps the engines they leave."""

    cage: Cage
    folder: Path
    started: list[Child] = field(default_factory=list)

    @property
    def data(self) -> Path:
        """The data folder all agents of this object share, one after another."""
        return self.folder / "data"

    def environment(self, **more: str) -> dict[str, str]:
        """Declared devices, loopback, ports from the system."""
        devices = [{"id": "gpu-0", "gpu_class": "LAB", "memory": "1GiB"}, {"id": "gpu-1", "gpu_class": "LAB"}]
        return {
            **os.environ,
            "LLMGW_AGENT_NODE_ID": "node-t",
            "LLMGW_AGENT_DATA_DIR": str(self.data),
            "LLMGW_AGENT_ADMIN_LISTEN": f"{LOOPBACK}:0",
            "LLMGW_AGENT_MANAGEMENT_ADDRESS": LOOPBACK,
            "LLMGW_AGENT_DEVICES": json.dumps(devices),
            "LLMGW_AGENT_DISK_RESERVE": "1MiB",
            "LLMGW_AGENT_REFRESH_INTERVAL_S": "0.3",
            "LLMGW_AGENT_PROBE_INTERVAL_S": "0.5",
            **more,
        }

    def start(self, *controllers: str, command: tuple[str, ...] = ("serve",), **more: str) -> Child:
        """`llmgw-agent serve` of this node."""
        address = ",".join(controllers)
        return self.spawn_with(self.environment(LLMGW_AGENT_CONTROLLER=address, **more), command=command)

    def spawn_with(self, environment: dict[str, str], *, command: tuple[str, ...] = ("serve",)) -> Child:
        """`llmgw-agent COMMAND` in exactly this environment."""
        child = self.cage.spawn(
            "agent", [sys.executable, "-m", "llmgw_agent", *command],
            log=self.folder / f"agent-{len(self.started) + 1}.log", env=environment,
        )  # fmt: skip
        self.started.append(child)
        return child

    def close(self) -> None:
        """End all agents, then their engines. One left behind would go on calling its controller's port,
        and find the next test's there."""
        for child in self.started:
            if child.code is None:
                child.stop(grace_s=PATIENCE_S)
        if (self.data / "journal").is_dir():
            engines_now.stop_all(self.data, grace_s=0.0)

    async def run(self, *command: str) -> tuple[int, str]:
        """One `llmgw-agent` command to its end: status and output."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "llmgw_agent", *command, env=self.environment(),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode is not None
        return process.returncode, out.decode()

    async def admin(self) -> str:
        """Base URL of the running agent's admin listener."""
        told = await eventually(lambda: read_json(self.data / "state" / "listeners.json"), "listeners.json")
        return f"http://{told['admin']}"


def read_json(path: Path) -> Any:
    """None while there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def scripted_engine(shard_id: str, *knobs: str, port: int | None = None, **fields: Any) -> pb.ShardSpec:
    """A spec that runs the kit's scripted engine under engine "command"."""
    port = free_ports(1)[0] if port is None else port
    fields.setdefault("stop_grace_s", 5.0)
    fields.setdefault("ready_timeout_s", 20.0)
    fields = {"replica_id": f"r-{shard_id}", "group_epoch": 1, **fields}
    return pb.ShardSpec(
        shard_id=shard_id, spec_hash=f"hash-{shard_id}", model="m",
        engine="command", served_names=["m"], device_ids=["gpu-0"], ports={"http": port},
        command=[
            sys.executable, "-m", "llmgw_kit.testing.engine", "--port", "{port}",
            "--served-name", "{served_name}", *knobs,
        ],
        **fields,
    )  # fmt: skip


async def ctl(spec: pb.ShardSpec, **knobs: Any) -> dict[str, Any]:
    """Ask a scripted engine, or change its knobs."""
    url = f"http://{LOOPBACK}:{spec.ports['http']}/ctl"
    async with aiohttp.ClientSession() as session:
        request = session.post(url, json=knobs) if knobs else session.get(url)
        async with request as answer:
            told: dict[str, Any] = await answer.json()
            return told


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when the process is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(eq=False)
class OneTest:
    """One test's own corner of an agent that a module's tests share: names that nobody else has."""

    leader: ScriptedController
    agents: Agents
    prefix: str
    results_before: int = 0

    def name(self, shard: str) -> str:
        """The shard's id at the controller."""
        return f"{self.prefix}{shard}"

    def engine(self, shard: str, *knobs: str, **fields: Any) -> pb.ShardSpec:
        """See `scripted_engine`."""
        return scripted_engine(self.name(shard), *knobs, **fields)

    @property
    def model(self) -> str:
        """A model of this test alone."""
        return f"org/{self.prefix}model"

    def held(self) -> list[pb.HeldWeights]:
        """Its weights, as the controller heard last."""
        return [one for one in self.leader.weights if one.model == self.model]

    def want(self, *shards: tuple[pb.ShardSpec, Any]) -> None:
        """The complete list."""
        self.leader.want(*shards)

    def say(self, **body: Any) -> None:
        """One message on the stream."""
        self.leader.link.say(**body)

    @property
    def results(self) -> list[pb.CommandResult]:
        """Answers to this test's commands."""
        return self.leader.link.results[self.results_before :]

    def history(self, shard: str) -> list[int]:
        """States it was reported in."""
        return self.leader.history[self.name(shard)]

    async def shard(
        self, shard: str, check: Callable[[pb.ObservedShard], Any], what: str
    ) -> pb.ObservedShard:
        """Wait until it was reported as `check` wants it."""
        return await self.leader.shard(self.name(shard), check, what)

    async def in_state(self, shard: str, state: Any) -> pb.ObservedShard:
        """Wait until it was reported in this state."""
        return await self.leader.in_state(self.name(shard), state)

    async def clear(self) -> None:
        """Let everything go and wait until the agent holds nothing."""
        self.leader.want()
        await eventually(lambda: not list((self.agents.data / "journal").glob("*.json")), "nothing is held")
