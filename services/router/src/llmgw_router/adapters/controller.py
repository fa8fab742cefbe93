"""The leading controller over gRPC: routes, acknowledgements, activations, goodbye."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmgw.v1 import routing_pb2 as pb
from llmgw.v1 import routing_pb2_grpc
from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.errors import InvalidRequest, LlmgwError, Unavailable
from llmgw_router.core.learned import Delta, Snapshot
from llmgw_router.ports import Acknowledgement, MoveOn, Phase, Ready, Refused
from llmgw_router.ports import Identity as Identity
from llmgw_router.wire import BadRoutes, routes_message

GOODBYE_TIMEOUT_S = 2.0
PING_TIMEOUT_S = 2.0
_SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ControllerSession:
    """One channel to one controller."""

    def __init__(self, address: HostPort, identity: Identity) -> None:
        self._address = address
        self._identity = identity
        self._channel = rpc.channel(address)
        self._stub = routing_pb2_grpc.RoutingServiceStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)  # has no typed stubs

    @property
    def address(self) -> HostPort:
        return self._address

    async def watch(self, *, highest_term: int | None) -> AsyncGenerator[Snapshot | Delta | MoveOn, None]:
        """Routes as they change, until the stream ends. Raises LlmgwError."""
        request = pb.WatchRoutesRequest(
            router_id=self._identity.router_id,
            incarnation=self._identity.incarnation,
            version=self._identity.version,
            highest_term_seen=highest_term,
        )
        call = self._stub.WatchRoutes(request)
        try:
            async for message in call:
                if message.WhichOneof("body") == "move_on":
                    yield MoveOn(_leader(message.move_on))
                else:
                    yield routes_message(message)
        except grpc.aio.AioRpcError as e:
            raise self._error(e) from None
        except BadRoutes as e:
            raise LlmgwError(f"controller {self._address} sent routes that cannot be read: {e}") from None
        finally:
            call.cancel()
        raise Unavailable(f"controller {self._address} ended the route stream")

    async def acknowledge(self, states: AsyncIterator[Acknowledgement]) -> None:
        """Pass on every state until the call fails or is cancelled. Raises LlmgwError."""

        async def requests() -> AsyncIterator[pb.AcknowledgeRequest]:
            async for state in states:
                yield pb.AcknowledgeRequest(
                    router_id=self._identity.router_id,
                    incarnation=self._identity.incarnation,
                    term=state.term,
                    version=state.version,
                    drained_endpoint_ids=sorted(state.drained),
                )

        try:
            await self._stub.Acknowledge(requests())
        except grpc.aio.AioRpcError as e:
            raise self._error(e) from None

    async def activate(self, model: str, *, waiting: int) -> AsyncGenerator[Phase | Ready | Refused, None]:
        """One model's start, told as it goes; ends with Ready or Refused. Raises LlmgwError."""
        request = pb.ActivateRequest(router_id=self._identity.router_id, model=model, waiting=waiting)
        call = self._stub.Activate(request)
        try:
            async for message in call:
                match message.WhichOneof("body"):
                    case "phase":
                        phase = message.phase
                        yield Phase(
                            phase=phase.phase,
                            progress=phase.progress if phase.HasField("progress") else None,
                            eta_s=phase.eta_s if phase.HasField("eta_s") else None,
                        )
                    case "ready":
                        yield Ready(message.ready.routes_version)
                    case "refused":
                        refused = message.refused
                        yield Refused(
                            code=refused.code,
                            text=refused.text,
                            retry_after_s=refused.retry_after_s
                            if refused.HasField("retry_after_s")
                            else None,
                        )
        except grpc.aio.AioRpcError as e:
            raise self._error(e) from None
        finally:
            # Who stops listening stops waiting: the controller counts this router out.
            call.cancel()

    async def ping(self) -> None:
        """Ask for its health. Raises LlmgwError when it does not answer in time."""
        request = health_pb2.HealthCheckRequest()
        try:
            await self._health.Check(request, timeout=PING_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            if e.code() in _SILENT:
                raise self._error(e) from None
            # Any other answer is an answer: it lives.

    async def goodbye(self, *, activity_lost: bool) -> None:
        """Leave the membership that idleness is judged by. Raises LlmgwError."""
        request = pb.GoodbyeRequest(
            router_id=self._identity.router_id,
            incarnation=self._identity.incarnation,
            activity_lost=activity_lost,
        )
        try:
            await self._stub.Goodbye(request, timeout=GOODBYE_TIMEOUT_S)
        except grpc.aio.AioRpcError as e:
            raise self._error(e) from None

    async def close(self) -> None:
        await rpc.close_quietly(self._channel)

    def _error(self, e: grpc.aio.AioRpcError) -> LlmgwError:
        return rpc.error_from(e, peer=f"controller {self._address}")


class GrpcControllers:
    """Opens sessions under one identity."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def open(self, address: HostPort) -> ControllerSession:
        return ControllerSession(address, self._identity)


def _leader(message: pb.RoutesMoveOn) -> HostPort | None:
    if not message.HasField("leader_address"):
        return None
    try:
        return parse_host_port(message.leader_address, what="leader address")
    except InvalidRequest:
        # A hint that cannot be read is no hint: the list is gone through.
        return None
