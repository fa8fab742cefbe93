"""The calls that bring weights here, and tell how far they are."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_mirror import wire
from llmgw_mirror.service import Mirror

Context = grpc.aio.ServicerContext[Any, Any]


class FetchingCalls:
    """A part of MirrorServicer."""

    def __init__(self, mirror: Mirror) -> None:
        self._fetching = mirror

    async def Fetch(self, request: mirror_pb2.FetchRequest, context: Context) -> mirror_pb2.FetchResponse:
        view = await self._fetching.fetch(
            request.model, request.version, wire.sources_from(request.files),
            repository=wire.repository_from(request.repository) if request.HasField("repository") else None,
            asked_by=_asked_by(request),
        )  # fmt: skip
        return mirror_pb2.FetchResponse(version=wire.version_to(view))

    async def CancelFetch(
        self, request: mirror_pb2.CancelFetchRequest, context: Context
    ) -> mirror_pb2.CancelFetchResponse:
        view, freed = await self._fetching.cancel(
            request.model, request.version, request.paths, discard=request.discard,
            asked_by=_asked_by(request),
        )  # fmt: skip
        return mirror_pb2.CancelFetchResponse(version=wire.version_to(view), freed_bytes=freed)

    async def RetryFetch(
        self, request: mirror_pb2.RetryFetchRequest, context: Context
    ) -> mirror_pb2.RetryFetchResponse:
        view = await self._fetching.retry(
            request.model, request.version, request.paths, asked_by=_asked_by(request)
        )
        return mirror_pb2.RetryFetchResponse(version=wire.version_to(view))

    async def ListDownloads(
        self, request: mirror_pb2.ListDownloadsRequest, context: Context
    ) -> mirror_pb2.ListDownloadsResponse:
        views = await self._fetching.downloads()
        return mirror_pb2.ListDownloadsResponse(versions=[wire.version_to(view) for view in views])


def _asked_by(
    request: mirror_pb2.FetchRequest | mirror_pb2.CancelFetchRequest | mirror_pb2.RetryFetchRequest,
) -> str | None:
    # An empty name is none.
    return request.asked_by or None
