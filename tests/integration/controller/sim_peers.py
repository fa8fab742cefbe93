"""The peers of a controller, in this process, over real gRPC: an agent and a router."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio

from llmgw.v1 import agent_pb2, agent_pb2_grpc, routing_pb2, routing_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import LlmgwError, NotLeader

from .controller_bench import WAIT_S, meant, until


@dataclass(eq=False)
class SimAgent:
    """A node in this process: says Hello, obeys Desired, and "runs" engines that are ready at once.

    `slow` shards stay LOADING until `finish` is called; what it was told is kept for the tests to look at."""

    node_id: str
    addresses: list[HostPort]
    gpus: int = 2
    gpu_class: str = "L4"
    slow: bool = False
    beat: bool = True
    instance: str = "i1"
    shards: dict[str, agent_pb2.ObservedShard] = field(default_factory=dict)
    desired: agent_pb2.Desired | None = None
    welcome: agent_pb2.Welcome | None = None
    term: int = 0
    rejects: list[agent_pb2.Reject] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    #: Every start of an engine, by shard id: an adopted one is not started again.
    starts: list[str] = field(default_factory=list)
    sessions: int = 0
    #: Beats said so far.
    beats: int = 0
    leader_beats: int = 0
    last_error: LlmgwError | None = None
    _out: asyncio.Queue[agent_pb2.ConnectRequest | None] | None = None
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until_welcome(self) -> Self:
        """Wait for a session."""
        await until(f"{self.node_id} is welcome", lambda: self.welcome is not None)
        return self

    def hello(self) -> agent_pb2.Hello:
        """All it has."""
        return agent_pb2.Hello(
            node_id=self.node_id,
            boot_id="boot-1",
            agent_instance=self.instance,
            version="test",
            highest_term_seen=self.term or None,
            inventory=agent_pb2.Inventory(
                hostname=self.node_id,
                management_address="127.0.0.1",
                devices=[self.device(index) for index in range(self.gpus)],
                engine_ports=agent_pb2.PortRange(first=21000, last=21099),
                engines=["command", "llamacpp"],
            ),
            shards=list(self.shards.values()),
        )

    def device(
        self, index: int, state: agent_pb2.DeviceState.ValueType = agent_pb2.DEVICE_STATE_HEALTHY
    ) -> agent_pb2.Device:
        """One GPU."""
        return agent_pb2.Device(
            device_id=f"{self.node_id}-gpu{index}", index=index, gpu_class=self.gpu_class, vendor="declared",
            memory_total_bytes=24 * 2**30, state=state,
            reason=None if state == agent_pb2.DEVICE_STATE_HEALTHY else "xid_79",
        )  # fmt: skip

    async def _run(self) -> None:
        for address in itertools.cycle(self.addresses):
            target: HostPort | None = address
            while target is not None:
                target = await self._session(target)
            await asyncio.sleep(0.1)

    async def _session(self, address: HostPort) -> HostPort | None:
        """One stream; who to try next, if somebody said."""
        channel = rpc.channel(address)
        out: asyncio.Queue[agent_pb2.ConnectRequest | None] = asyncio.Queue()
        out.put_nowait(agent_pb2.ConnectRequest(hello=self.hello()))

        async def requests() -> AsyncIterator[agent_pb2.ConnectRequest]:
            while (word := await out.get()) is not None:
                yield word

        beating: asyncio.Task[None] | None = None
        call = agent_pb2_grpc.AgentServiceStub(channel).Connect(requests())
        try:
            async for message in call:
                body = message.WhichOneof("body")
                # A refusal may come under a lower term than was seen; that is what it is about.
                assert message.term >= self.term or body == "reject", f"{body} under term {message.term}"
                self.term = max(self.term, message.term)
                match body:
                    case "welcome":
                        self.welcome, self._out = message.welcome, out
                        self.sessions += 1
                        beating = asyncio.create_task(self._beat())
                    case "desired":
                        self.desired = message.desired
                        self._obey(message.desired)
                    case "reject":
                        self.rejects.append(message.reject)
                        if message.reject.code == "fenced":
                            await asyncio.sleep(3600)
                        return _address(message.reject.leader_address)
                    case "move_on":
                        return _address(message.move_on.leader_address)
                    case "beat":
                        self.leader_beats += 1
                    case str(command):
                        self.commands.append(command)
        except grpc.aio.AioRpcError as e:
            self.last_error = meant(e)
            if isinstance(self.last_error, NotLeader):
                return _address(self.last_error.leader_address or "")
        finally:
            self.welcome = self._out = None
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
            # A task of grpc's waits for our next word, also after the call has ended, and would for ever.
            out.put_nowait(None)
            call.cancel()
            await channel.close()
        return None

    def say(self, **body: Any) -> None:
        """Send one message in the present session."""
        assert self.welcome is not None
        assert self._out is not None
        self._out.put_nowait(agent_pb2.ConnectRequest(session_epoch=self.welcome.session_epoch, **body))

    async def _beat(self) -> None:
        for sequence in itertools.count(1):
            if self.beat and self.welcome is not None:
                self.beats += 1
                self.say(beat=agent_pb2.Beat(sequence=sequence))
            await asyncio.sleep(self.welcome.beat_interval_s if self.welcome else 0.5)

    def _obey(self, desired: agent_pb2.Desired) -> None:
        wanted = {shard.spec.shard_id: shard for shard in desired.shards}
        for shard_id, shard in wanted.items():
            known = self.shards.get(shard_id)
            if shard.wish == agent_pb2.SHARD_WISH_STOP:
                self._put(shard.spec, agent_pb2.SHARD_STATE_EXITED, reason="stopped")
            elif shard.wish == agent_pb2.SHARD_WISH_DRAIN:
                self._put(shard.spec, agent_pb2.SHARD_STATE_DRAINING)
            elif known is None:
                self.starts.append(shard_id)
                state = agent_pb2.SHARD_STATE_LOADING if self.slow else agent_pb2.SHARD_STATE_SERVING
                self._put(shard.spec, state)
        for shard_id in [one for one in self.shards if one not in wanted]:
            del self.shards[shard_id]

    def _put(
        self, spec: agent_pb2.ShardSpec, state: agent_pb2.ShardState.ValueType, reason: str | None = None
    ) -> None:
        serving = state == agent_pb2.SHARD_STATE_SERVING
        shard = agent_pb2.ObservedShard(
            shard_id=spec.shard_id, replica_id=spec.replica_id, group_epoch=spec.group_epoch,
            spec_hash=spec.spec_hash, state=state, pid=4242, pid_start_ticks=99, ports=dict(spec.ports),
            device_ids=list(spec.device_ids), probed=serving, load_s=1.5 if serving else None,
            running_requests=None if reason else 0,
        )  # fmt: skip
        if reason is not None:
            shard.exit.reason = reason
        self.shards[spec.shard_id] = shard
        self.say(shard_status=agent_pb2.ShardStatus(shards=[shard]))

    def tell(self, shard: agent_pb2.ObservedShard) -> None:
        """Say what is seen of a shard, after the test has changed it."""
        self.say(shard_status=agent_pb2.ShardStatus(shards=[shard]))

    def finish(self) -> None:
        """What was loading serves now."""
        for shard in self.shards.values():
            if shard.state == agent_pb2.SHARD_STATE_LOADING:
                shard.state, shard.probed, shard.load_s = agent_pb2.SHARD_STATE_SERVING, True, 1.5
                self.say(shard_status=agent_pb2.ShardStatus(shards=[shard]))

    def crash(self, shard_id: str) -> None:
        """Its engine ends by itself."""
        shard = self.shards[shard_id]
        shard.state, shard.probed = agent_pb2.SHARD_STATE_EXITED, False
        shard.exit.reason, shard.exit.signal = "crashed", 9
        self.say(shard_status=agent_pb2.ShardStatus(shards=[shard]))


def _address(text: str) -> HostPort | None:
    host, _, port = text.rpartition(":")
    return HostPort(host, int(port)) if host else None


@dataclass(eq=False)
class SimRouter:
    """Watches the routes, acknowledges everything, and has nothing in flight."""

    addresses: list[HostPort]
    router_id: str = "router-1"
    incarnation: str = "life-1"
    acknowledges: bool = True
    term: int = 0
    version: int = 0
    endpoints: dict[str, routing_pb2.Endpoint] = field(default_factory=dict)
    models: dict[str, routing_pb2.CatalogModel] = field(default_factory=dict)
    fleet: routing_pb2.FleetSummary | None = None
    #: (term, version, what) of each message, in order.
    heard: list[tuple[int, int, str]] = field(default_factory=list)
    #: Every set of endpoint ids that ever was the table.
    tables: list[frozenset[str]] = field(default_factory=list)
    #: Endpoints that were ever marked as draining.
    drains: set[str] = field(default_factory=set)
    leader: HostPort | None = None
    last_error: LlmgwError | None = None
    _task: asyncio.Task[None] | None = None
    _acks: asyncio.Queue[routing_pb2.AcknowledgeRequest] = field(default_factory=asyncio.Queue)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until_endpoints(self, count: int) -> list[routing_pb2.Endpoint]:
        """Wait until the table has so many endpoints that take requests."""
        await until(f"{count} endpoints", lambda: len(self.routable()) == count)
        return self.routable()

    def routable(self) -> list[routing_pb2.Endpoint]:
        """Endpoints that take requests."""
        return [row for _, row in sorted(self.endpoints.items()) if not row.draining]

    async def _run(self) -> None:
        for address in itertools.cycle(self.addresses):
            target: HostPort | None = address
            while target is not None:
                target = await self._session(target)
            await asyncio.sleep(0.1)

    async def _session(self, address: HostPort) -> HostPort | None:
        channel = rpc.channel(address)
        stub = routing_pb2_grpc.RoutingServiceStub(channel)
        acknowledging: asyncio.Task[Any] | None = None
        request = routing_pb2.WatchRoutesRequest(
            router_id=self.router_id, incarnation=self.incarnation, version="test",
            highest_term_seen=self.term or None,
        )  # fmt: skip
        try:
            async for message in stub.WatchRoutes(request):
                body = message.WhichOneof("body")
                self.heard.append((message.term, message.version, str(body)))
                assert message.term >= self.term, f"term went back from {self.term} to {message.term}"
                if body == "move_on":
                    return _address(message.move_on.leader_address)
                self._take(message)
                if acknowledging is None:
                    self.leader = address
                    acknowledging = asyncio.create_task(self._acknowledge(stub))
                self._acks.put_nowait(self._word())
        except grpc.aio.AioRpcError as e:
            self.last_error = meant(e)
            if isinstance(self.last_error, NotLeader):
                return _address(self.last_error.leader_address or "")
        finally:
            self.leader = None
            if acknowledging is not None:
                acknowledging.cancel()
                await asyncio.gather(acknowledging, return_exceptions=True)
            await channel.close()
        return None

    def _take(self, message: routing_pb2.WatchRoutesResponse) -> None:
        if message.HasField("snapshot"):
            self.endpoints = {row.endpoint_id: row for row in message.snapshot.endpoints}
            self.models = {row.model: row for row in message.snapshot.models}
            self.fleet = message.snapshot.fleet
        else:
            assert (message.term, message.version) == (self.term, self.version + 1), "a gap in versions"
            delta = message.delta
            for name in delta.remove_endpoint_ids:
                del self.endpoints[name]
            self.endpoints.update((row.endpoint_id, row) for row in delta.upsert_endpoints)
            for name in delta.remove_model_ids:
                del self.models[name]
            self.models.update((row.model, row) for row in delta.upsert_models)
            self.fleet = delta.fleet
        self.term, self.version = message.term, message.version
        self.tables.append(frozenset(self.endpoints))
        self.drains.update(row.endpoint_id for row in self.endpoints.values() if row.draining)

    def _word(self) -> routing_pb2.AcknowledgeRequest:
        drained = [row.endpoint_id for row in self.endpoints.values() if row.draining and self.acknowledges]
        return routing_pb2.AcknowledgeRequest(
            router_id=self.router_id, incarnation=self.incarnation, term=self.term, version=self.version,
            drained_endpoint_ids=drained,
        )  # fmt: skip

    def acknowledge(self) -> None:
        """Say once more what is applied and drained."""
        self._acks.put_nowait(self._word())

    async def _acknowledge(self, stub: Any) -> None:
        async def words() -> AsyncIterator[routing_pb2.AcknowledgeRequest]:
            while True:
                yield await self._acks.get()

        await stub.Acknowledge(words())

    async def activate(self, model: str) -> list[routing_pb2.ActivateResponse]:
        """Ask the leader, and wait for the end of its word."""
        await until("a leader", lambda: self.leader is not None)
        assert self.leader is not None
        channel = rpc.channel(self.leader)
        try:
            stub = routing_pb2_grpc.RoutingServiceStub(channel)
            request = routing_pb2.ActivateRequest(router_id=self.router_id, model=model, waiting=1)
            return [message async for message in stub.Activate(request, timeout=WAIT_S)]
        finally:
            await channel.close()

    async def goodbye(self) -> None:
        """Leave the membership."""
        assert self.leader is not None
        channel = rpc.channel(self.leader)
        try:
            stub = routing_pb2_grpc.RoutingServiceStub(channel)
            request = routing_pb2.GoodbyeRequest(router_id=self.router_id, incarnation=self.incarnation)
            await stub.Goodbye(request, timeout=5)
        finally:
            await channel.close()
