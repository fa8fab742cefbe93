"""The calls that find weights in the registry, and fetch what was found."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_mirror import wire_registry as wire
from llmgw_mirror.fetching_repository import FetchingRepository
from llmgw_mirror.finding import Finding

Context = grpc.aio.ServicerContext[Any, Any]


class RegistryCalls:
    """A part of MirrorServicer."""

    def __init__(self, finding: Finding, fetching: FetchingRepository) -> None:
        self._finding = finding
        self._from_registry = fetching

    async def GetRegistry(
        self, request: mirror_pb2.GetRegistryRequest, context: Context
    ) -> mirror_pb2.GetRegistryResponse:
        return wire.state_to(self._finding.state())

    async def Search(self, request: mirror_pb2.SearchRequest, context: Context) -> mirror_pb2.SearchResponse:
        found, more = await self._finding.search(
            request.words, author=request.author or None, filters=request.filters, sort=request.sort or None,
            limit=request.limit if request.HasField("limit") else None,
        )  # fmt: skip
        return mirror_pb2.SearchResponse(repositories=[wire.found_to(one) for one in found], more=more)

    async def ListFiles(
        self, request: mirror_pb2.ListFilesRequest, context: Context
    ) -> mirror_pb2.ListFilesResponse:
        look = await self._finding.look(
            request.repository, request.revision or None, wire.fleet_from(request.fleet)
        )
        return wire.look_to(look)

    async def FetchRepository(
        self, request: mirror_pb2.FetchRepositoryRequest, context: Context
    ) -> mirror_pb2.FetchRepositoryResponse:
        order = wire.order_from(request)
        do = self._from_registry.preview if request.dry_run else self._from_registry.fetch
        return wire.ordered_to(await do(order))
