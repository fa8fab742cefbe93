"""A RoutingService in the test's hand, over real gRPC: leads or stands by, says what it is told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from llmgw.v1 import routing_pb2 as pb
from llmgw.v1 import routing_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.errors import NotLeader

#: Longest wait for what must come about.
BOUND_S = 30.0

Context = Any


async def until(true: Callable[[], bool], what: str, *, within_s: float = BOUND_S) -> None:
    """Give way until it holds; AssertionError naming `what` when it does not come about."""
    try:
        async with asyncio.timeout(within_s):
            while not true():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"within {within_s:g} s there was no {what}") from None


def endpoint(
    endpoint_id: str, model: str, url: str, *, draining: bool = False, key: str | None = None
) -> pb.Endpoint:
    replica_id, _, epoch = endpoint_id.partition("@")
    return pb.Endpoint(
        endpoint_id=endpoint_id,
        replica_id=replica_id,
        group_epoch=int(epoch),
        model=model,
        url=url,
        pool="lab",
        weight=1,
        node_id="n1",
        draining=draining,
        credential=key,
    )


def model(name: str, availability: "pb.ModelAvailability.ValueType", **fields: Any) -> pb.CatalogModel:
    return pb.CatalogModel(
        model=name, availability=availability, hold_timeout_s=10, max_held=8, activatable=True, **fields
    )


@dataclass
class Activation:
    """One open Activate call."""

    request: pb.ActivateRequest
    answers: "asyncio.Queue[pb.ActivateResponse]" = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def refuse(self, term: int, code: str, text: str, retry_after_s: float) -> None:
        refused = pb.ActivationRefused(code=code, text=text, retry_after_s=retry_after_s)
        self.answers.put_nowait(pb.ActivateResponse(term=term, refused=refused))


class RoutingBench(routing_pb2_grpc.RoutingServiceServicer):
    """One controller as routers see it."""

    def __init__(self, *, term: int = 1, leading: bool = True, leader: HostPort | None = None) -> None:
        self.term = term
        self.version = 1
        self.leading = leading
        self.leader = leader
        self.endpoints: dict[str, pb.Endpoint] = {}
        self.models: dict[str, pb.CatalogModel] = {}
        self.fleet: pb.FleetSummary | None = None
        self.watches: list[pb.WatchRoutesRequest] = []
        self.acks: list[pb.AcknowledgeRequest] = []
        self.goodbyes: list[pb.GoodbyeRequest] = []
        self.activations: list[Activation] = []
        self._streams: set[asyncio.Queue[pb.WatchRoutesResponse | None]] = set()
        self._server: grpc.aio.Server | None = None
        self.address = HostPort("127.0.0.1", 0)

    async def start(self) -> None:
        self._server = rpc.server()
        routing_pb2_grpc.add_RoutingServiceServicer_to_server(self, self._server)
        self.address = rpc.listen(self._server, self.address, flag="--listen")
        await self._server.start()

    async def stop(self) -> None:
        """As a crash looks: streams end, the port is closed."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def __aenter__(self) -> "RoutingBench":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- what it says

    def snapshot(self) -> pb.WatchRoutesResponse:
        body = pb.RouteSnapshot(
            endpoints=list(self.endpoints.values()), models=list(self.models.values()), fleet=self.fleet
        )
        return pb.WatchRoutesResponse(term=self.term, version=self.version, snapshot=body)

    def put(self, *endpoints: pb.Endpoint, models: tuple[pb.CatalogModel, ...] = ()) -> None:
        """Add or change, and tell it as a delta."""
        self.endpoints.update((one.endpoint_id, one) for one in endpoints)
        self.models.update((one.model, one) for one in models)
        self._delta(pb.RouteDelta(upsert_endpoints=endpoints, upsert_models=models))

    def drop(self, endpoint_id: str) -> None:
        del self.endpoints[endpoint_id]
        self._delta(pb.RouteDelta(remove_endpoint_ids=[endpoint_id]))

    def skip_a_version(self) -> None:
        """The next delta will not follow the last."""
        self.version += 1

    def say(self, message: pb.WatchRoutesResponse) -> None:
        for stream in self._streams:
            stream.put_nowait(message)

    def _delta(self, delta: pb.RouteDelta) -> None:
        self.version += 1
        self.say(pb.WatchRoutesResponse(term=self.term, version=self.version, delta=delta))

    @property
    def followers(self) -> int:
        return len(self._streams)

    # --- the service

    def _must_lead(self) -> None:
        if not self.leading:
            leader = str(self.leader) if self.leader is not None else None
            raise NotLeader("this controller stands by", leader_address=leader)

    async def WatchRoutes(
        self, request: pb.WatchRoutesRequest, context: Context
    ) -> AsyncIterator[pb.WatchRoutesResponse]:
        self.watches.append(request)
        self._must_lead()
        stream: asyncio.Queue[pb.WatchRoutesResponse | None] = asyncio.Queue()
        self._streams.add(stream)
        try:
            yield self.snapshot()
            while (message := await stream.get()) is not None:
                yield message
        finally:
            self._streams.discard(stream)

    async def Acknowledge(
        self, requests: AsyncIterator[pb.AcknowledgeRequest], context: Context
    ) -> pb.AcknowledgeResponse:
        self._must_lead()
        async for request in requests:
            self.acks.append(request)
        return pb.AcknowledgeResponse()

    async def Activate(
        self, request: pb.ActivateRequest, context: Context
    ) -> AsyncIterator[pb.ActivateResponse]:
        self._must_lead()
        activation = Activation(request)
        self.activations.append(activation)
        try:
            while True:
                answer = await activation.answers.get()
                yield answer
                if answer.WhichOneof("body") != "phase":
                    return
        finally:
            activation.ended.set()

    async def Goodbye(self, request: pb.GoodbyeRequest, context: Context) -> pb.GoodbyeResponse:
        self._must_lead()
        self.goodbyes.append(request)
        return pb.GoodbyeResponse()


@contextlib.asynccontextmanager
async def benches(*made: RoutingBench) -> AsyncIterator[None]:
    """Several controllers for as long as the block lasts."""
    async with contextlib.AsyncExitStack() as stack:
        for one in made:
            await stack.enter_async_context(one)
        yield
