"""The calls that carry versions in and out in files."""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc.aio

from llmgw.v1 import mirror_pb2
from llmgw_kit.clock import Clock
from llmgw_kit.errors import NotConfigured
from llmgw_mirror.adapters.bundle_files import BundleFolder, BundleSeen, unseen
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.core.bundle_layout import layout
from llmgw_mirror.core.bundles import Manifest
from llmgw_mirror.exporting import Exports, Progress
from llmgw_mirror.importing import Imports

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Bundling:
    """What the calls need; None in its place where no folder is configured."""

    folder: BundleFolder
    exports: Exports
    imports: Imports
    threads: DiskThreads
    clock: Clock


class BundleCalls:
    """A part of MirrorServicer."""

    def __init__(self, bundling: Bundling | None) -> None:
        self._bundling = bundling

    def _room(self) -> Bundling:
        if self._bundling is None:
            raise NotConfigured(
                "the mirror has no folder for bundles, so it neither exports nor imports",
                code="no_bundle_folder",
                next_steps=["set bundle_dir in the mirror's configuration and start it again"],
            )
        return self._bundling

    async def ExportBundle(
        self, request: mirror_pb2.ExportBundleRequest, context: Context
    ) -> AsyncIterator[mirror_pb2.ExportBundleResponse]:
        room = self._room()
        names = [(one.model, one.version) for one in request.versions]
        since = request.since or None
        if request.dry_run:
            manifest = await room.exports.plan(names, request.name, since)
            yield mirror_pb2.ExportBundleResponse(progress=_planned(manifest))
            return
        told = room.exports.export(names, request.name, since=since, asked_by=request.asked_by or None)
        async for progress in told:
            yield mirror_pb2.ExportBundleResponse(progress=_progress(progress, room.clock))

    async def ImportBundle(
        self, request: mirror_pb2.ImportBundleRequest, context: Context
    ) -> AsyncIterator[mirror_pb2.ImportBundleResponse]:
        room = self._room()
        if request.dry_run:
            manifest = await room.imports.plan(request.name)
            yield mirror_pb2.ImportBundleResponse(progress=_planned(manifest))
            return
        async for progress in room.imports.bring(request.name, asked_by=request.asked_by or None):
            yield mirror_pb2.ImportBundleResponse(progress=_progress(progress, room.clock))

    async def ListBundles(
        self, request: mirror_pb2.ListBundlesRequest, context: Context
    ) -> mirror_pb2.ListBundlesResponse:
        room = self._bundling
        if room is None:
            return mirror_pb2.ListBundlesResponse()
        seen = await room.threads.run(room.folder.every)
        return mirror_pb2.ListBundlesResponse(
            bundles=[_bundle(one) for one in seen], folder=str(room.folder.root)
        )


def _progress(progress: Progress, clock: Clock) -> mirror_pb2.BundleProgress:
    now, done = clock.monotonic_s(), progress.bundle is not None
    return mirror_pb2.BundleProgress(
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        done_files=progress.done_files,
        total_files=progress.total_files,
        current_path=None if done else progress.current_path,
        done=done,
        bundle=None if progress.bundle is None else _bundle(progress.bundle),
        rate_bytes_s=None if done else progress.meter.rate_bytes_s(now),
        eta_s=None if done else progress.meter.eta_s(now, progress.total_bytes),
    )


def _planned(manifest: Manifest) -> mirror_pb2.BundleProgress:
    """Of a dry run: nothing is done, and what would be."""
    planned = layout(manifest)
    return mirror_pb2.BundleProgress(
        total_bytes=planned.size_bytes,
        total_files=len(planned.members),
        done=True,
        bundle=_bundle(unseen(manifest)),
    )


def _bundle(seen: BundleSeen) -> mirror_pb2.Bundle:
    manifest = seen.manifest
    return mirror_pb2.Bundle(
        name=seen.name,
        bytes=seen.size_bytes,
        created_at_unix_s=seen.at,
        versions=[
            mirror_pb2.VersionName(model=one.model, version=one.version)
            for one in (() if manifest is None else manifest.versions)
        ],
        since=None if manifest is None else manifest.since,
        partial=seen.partial,
        sha256=seen.sha256,
        trouble=seen.trouble,
    )
