"""The calls that bring weights here, and tell how far they are."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_mirror import wire
from llmgw_mirror.downloads import Downloads
from llmgw_mirror.service import Mirror
from llmgw_mirror.throttle import Throttle

Context = grpc.aio.ServicerContext[Any, Any]


class FetchingCalls:
    """A part of MirrorServicer."""

    def __init__(self, mirror: Mirror, downloads: Downloads, throttle: Throttle) -> None:
        self._fetching = mirror
        self._downloads = downloads
        self._throttle = throttle

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
        found, cap = await self._downloads.now(), self._throttle.cap()
        return mirror_pb2.ListDownloadsResponse(
            versions=[wire.download_to(one) for one in found],
            cap_bytes_s=None if cap is None else cap.bytes_s,
            cap_until_unix_s=None if cap is None else cap.until,
        )

    async def WatchDownloads(
        self, request: mirror_pb2.WatchDownloadsRequest, context: Context
    ) -> AsyncIterator[mirror_pb2.WatchDownloadsResponse]:
        model = request.model if request.HasField("model") else None
        version = request.version if request.HasField("version") else None
        async for found in self._downloads.watch(model, version):
            cap = self._throttle.cap()
            yield mirror_pb2.WatchDownloadsResponse(
                versions=[wire.download_to(one) for one in found],
                cap_bytes_s=None if cap is None else cap.bytes_s,
                cap_until_unix_s=None if cap is None else cap.until,
            )


def _asked_by(
    request: mirror_pb2.FetchRequest | mirror_pb2.CancelFetchRequest | mirror_pb2.RetryFetchRequest,
) -> str | None:
    # An empty name is none.
    return request.asked_by or None
