"""The calls about what is here: listed and removed."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_mirror import wire
from llmgw_mirror.service import Mirror

Context = grpc.aio.ServicerContext[Any, Any]


class KeepingCalls:
    """A part of MirrorServicer."""

    def __init__(self, mirror: Mirror) -> None:
        self._keeping = mirror

    async def ListVersions(
        self, request: mirror_pb2.ListVersionsRequest, context: Context
    ) -> mirror_pb2.ListVersionsResponse:
        views = await self._keeping.versions(request.model if request.HasField("model") else None)
        total, free = await self._keeping.disk()
        return mirror_pb2.ListVersionsResponse(
            versions=[wire.version_to(view) for view in views], disk_total_bytes=total, disk_free_bytes=free
        )

    async def RemoveVersion(
        self, request: mirror_pb2.RemoveVersionRequest, context: Context
    ) -> mirror_pb2.RemoveVersionResponse:
        freed = await self._keeping.remove(request.model, request.version)
        return mirror_pb2.RemoveVersionResponse(freed_bytes=freed)
