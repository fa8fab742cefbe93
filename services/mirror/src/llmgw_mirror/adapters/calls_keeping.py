"""The calls about what is here: listed, found, verified, removed, restored, and its history."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_mirror import wire_keeping
from llmgw_mirror.keeping import Keeping

Context = grpc.aio.ServicerContext[Any, Any]


class KeepingCalls:
    """A part of MirrorServicer."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping

    async def ListVersions(
        self, request: mirror_pb2.ListVersionsRequest, context: Context
    ) -> mirror_pb2.ListVersionsResponse:
        found = await self._keeping.versions(request.model if request.HasField("model") else None)
        total, free = await self._keeping.disk()
        return mirror_pb2.ListVersionsResponse(
            versions=[wire_keeping.described_to(one) for one in found],
            disk_total_bytes=total,
            disk_free_bytes=free,
        )

    async def ResolveVersion(
        self, request: mirror_pb2.ResolveVersionRequest, context: Context
    ) -> mirror_pb2.ResolveVersionResponse:
        found = await self._keeping.resolve(
            model=request.model if request.HasField("model") else None,
            version=request.version if request.HasField("version") else None,
            repository=request.repository if request.HasField("repository") else None,
            revision=request.revision if request.HasField("revision") else None,
        )
        return mirror_pb2.ResolveVersionResponse(version=wire_keeping.described_to(found))

    async def VerifyVersion(
        self, request: mirror_pb2.VerifyVersionRequest, context: Context
    ) -> AsyncIterator[mirror_pb2.VerifyVersionResponse]:
        words = self._keeping.verifying.verify(
            request.model, request.version, request.paths,
            asked_by=request.asked_by or None,
        )  # fmt: skip
        async with aclosing(words) as said:
            async for word in said:
                yield wire_keeping.verified_to(word)

    async def RemoveVersion(
        self, request: mirror_pb2.RemoveVersionRequest, context: Context
    ) -> mirror_pb2.RemoveVersionResponse:
        removed = await self._keeping.removing.remove(
            request.model, request.version, force=request.force, dry_run=request.dry_run, now=request.now,
            asked_by=request.asked_by or None,
        )  # fmt: skip
        return mirror_pb2.RemoveVersionResponse(
            freed_bytes=removed.freed_bytes,
            restorable_until_unix_s=removed.restorable_until,
            shared_bytes=removed.shared_bytes,
            readers=removed.readers,
        )

    async def RestoreVersion(
        self, request: mirror_pb2.RestoreVersionRequest, context: Context
    ) -> mirror_pb2.RestoreVersionResponse:
        view = await self._keeping.removing.restore(
            request.model, request.version,
            asked_by=request.asked_by or None,
        )  # fmt: skip
        described = await self._keeping.described(view)
        return mirror_pb2.RestoreVersionResponse(version=wire_keeping.described_to(described))

    async def ListRemoved(
        self, request: mirror_pb2.ListRemovedRequest, context: Context
    ) -> mirror_pb2.ListRemovedResponse:
        removed = await self._keeping.removing.removed()
        return mirror_pb2.ListRemovedResponse(versions=[wire_keeping.removal_to(one) for one in removed])

    async def ListHistory(
        self, request: mirror_pb2.ListHistoryRequest, context: Context
    ) -> mirror_pb2.ListHistoryResponse:
        entries = await self._keeping.history(
            model=request.model if request.HasField("model") else None,
            version=request.version if request.HasField("version") else None,
            since=request.since_unix_s if request.HasField("since_unix_s") else None,
            limit=request.limit if request.HasField("limit") else None,
        )
        return mirror_pb2.ListHistoryResponse(entries=[wire_keeping.entry_to(entry) for entry in entries])
