"""MirrorService over gRPC: messages in and out, nothing decided here."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2, mirror_pb2_grpc
from llmgw_mirror import wire
from llmgw_mirror.service import Mirror

SERVICE = mirror_pb2.DESCRIPTOR.services_by_name["MirrorService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class MirrorServicer(mirror_pb2_grpc.MirrorServiceServicer):
    """Errors leave as LlmgwError; llmgw_kit.rpc maps them."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    async def Fetch(self, request: mirror_pb2.FetchRequest, context: Context) -> mirror_pb2.FetchResponse:
        view = await self._mirror.fetch(request.model, request.version, wire.sources_from(request.files))
        return mirror_pb2.FetchResponse(version=wire.version_to(view))

    async def ListDownloads(
        self, request: mirror_pb2.ListDownloadsRequest, context: Context
    ) -> mirror_pb2.ListDownloadsResponse:
        views = await self._mirror.downloads()
        return mirror_pb2.ListDownloadsResponse(versions=[wire.version_to(view) for view in views])

    async def ListVersions(
        self, request: mirror_pb2.ListVersionsRequest, context: Context
    ) -> mirror_pb2.ListVersionsResponse:
        views = await self._mirror.versions(request.model if request.HasField("model") else None)
        total, free = await self._mirror.disk()
        return mirror_pb2.ListVersionsResponse(
            versions=[wire.version_to(view) for view in views], disk_total_bytes=total, disk_free_bytes=free
        )

    async def RemoveVersion(
        self, request: mirror_pb2.RemoveVersionRequest, context: Context
    ) -> mirror_pb2.RemoveVersionResponse:
        freed = await self._mirror.remove(request.model, request.version)
        return mirror_pb2.RemoveVersionResponse(freed_bytes=freed)
