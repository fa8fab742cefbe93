"""The lab as an operator: what the leading controller says, asked over gRPC as llmgwctl does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio

from llmgw.v1 import operator_pb2, operator_pb2_grpc
from llmgw_kit.addresses import parse_host_port
from llmgw_kit.rpc import channel

CALL_TIMEOUT_S = 2.0

T = TypeVar("T")


class Operator:
    """Channels to every controller; use it on one loop, as a context manager."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._stubs: list[Any] = []
        self._links = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for address in self._addresses:
            link = await self._links.enter_async_context(channel(parse_host_port(address, what="controller")))
            self._stubs.append(operator_pb2_grpc.OperatorServiceStub(link))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._links.aclose()

    async def _ask(self, call: Callable[[Any], Awaitable[T]]) -> T | None:
        """The first answer of any controller; None when none leads or answers just now."""
        for stub in self._stubs:
            try:
                return await asyncio.wait_for(call(stub), CALL_TIMEOUT_S)
            except (grpc.aio.AioRpcError, TimeoutError):
                continue
        return None

    async def replicas(self, model: str) -> Sequence[operator_pb2.ReplicaRow] | None:
        """Replicas of a model; None while nobody answers."""
        request = operator_pb2.ListReplicasRequest(model=model)
        answer = await self._ask(lambda stub: stub.ListReplicas(request))
        return None if answer is None else answer.replicas

    async def at_rest(self, model: str) -> bool:
        """Whether a controller says that nobody waits for the model and nothing of it runs."""
        answer = await self._ask(lambda stub: stub.ListModels(operator_pb2.ListModelsRequest()))
        rows = [] if answer is None else [row for row in answer.models if row.model == model]
        return any(row.HasField("in_flight") and row.in_flight == row.held == 0 for row in rows)

    async def heard_nodes(self) -> set[str]:
        """Ids of the nodes whose agents the leader hears; empty while nobody answers."""
        answer = await self._ask(lambda stub: stub.ListNodes(operator_pb2.ListNodesRequest()))
        if answer is None:
            return set()
        return {row.node_id for row in answer.nodes if row.state == operator_pb2.NODE_STATE_READY}

    async def leader(self) -> str | None:
        """Name of the controller that leads; None while nobody does."""
        for stub in self._stubs:
            try:
                answer = await stub.GetLeader(operator_pb2.GetLeaderRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                continue
            if answer.leading:
                return str(answer.name)
        return None
