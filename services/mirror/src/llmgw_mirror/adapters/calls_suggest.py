"""The call that proposes a catalog entry for a version."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_kit.errors import Conflict, NotFound, Unavailable
from llmgw_mirror.adapters.describing import describe
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.core.suggest import chosen_weights, suggest
from llmgw_mirror.core.suggest_yaml import written
from llmgw_mirror.core.versions import VersionView, WeightsState
from llmgw_mirror.service import Mirror
from llmgw_mirror.wire_registry import fleet_from

Context = grpc.aio.ServicerContext[Any, Any]


class SuggestCalls:
    """A part of MirrorServicer."""

    def __init__(self, mirror: Mirror, readers: DiskThreads) -> None:
        self._suggesting = mirror
        self._describing = readers

    async def SuggestModel(
        self, request: mirror_pb2.SuggestModelRequest, context: Context
    ) -> mirror_pb2.SuggestModelResponse:
        fleet = fleet_from(request.fleet)
        view = await self._whole(request.model, request.version)
        chosen = chosen_weights(view)
        if chosen is None:
            raise Conflict(
                f"{view.model!r} {view.version!r} holds no weights that vllm, sglang or llama.cpp load",
                code="no_engine",
                next_steps=["write the entry by hand, with engine command: docs/catalog.md"],
            )
        try:
            model, unread = await self._describing.run(describe, view, chosen, self._suggesting.content)
        except OSError as e:
            raise Unavailable(
                f"its files cannot be read: {e.strerror or e}", code="disk_trouble",
                next_steps=["see whether the mirror's disk is well, then verify the version"],
            ) from e  # fmt: skip
        entry, notes = suggest(view, chosen, model, fleet)
        told = [*([unread] if unread is not None else []), *notes]
        return mirror_pb2.SuggestModelResponse(catalog_yaml=written(entry), notes=told)

    async def _whole(self, model: str, version: str) -> VersionView:
        """Raises NotFound, or Conflict while a file of it is missing: its sizes are not known then."""
        found = [view for view in await self._suggesting.versions(model) if view.version == version]
        if not found:
            raise NotFound(
                f"version {version!r} of {model!r} is not here",
                code="version_not_found",
                next_steps=["what is here: llmgwctl mirror versions"],
            )
        if found[0].state is not WeightsState.PRESENT:
            raise Conflict(
                f"version {version!r} of {model!r} is {found[0].state.value}: what it needs is known of a "
                "whole one only",
                code="not_present",
                next_steps=["how far it is: llmgwctl mirror downloads"],
            )
        return found[0]
