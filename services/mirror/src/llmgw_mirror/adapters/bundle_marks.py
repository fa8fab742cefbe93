"""Which bundle a version came with, noted beside the version: until its files are here, and whenever one is
lost later, the bundle is asked rather than the address the files once came from.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmgw_mirror.adapters.bundle_files import BundleFolder
from llmgw_mirror.adapters.disk import write_atomically
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.adapters.upstream_bundle import bundle_url
from llmgw_mirror.core.bundles import PackedVersion
from llmgw_mirror.core.versions import Proof, Source

NAME = "bundle.json"


def mark_of(bundle: str, packed: PackedVersion) -> bytes:
    """The content of the note."""
    files = {
        file.source.path: {
            "content": file.content, "size_bytes": file.size_bytes, "proof": file.proof.value,
            "git_id": file.source.git_id,
        }
        for file in packed.files
    }  # fmt: skip
    return json.dumps({"bundle": bundle, "files": files}, ensure_ascii=False).encode() + b"\n"


class BundleMarks:
    """`folder` None: none is configured, and no note counts. Blocks."""

    def __init__(self, store: Store, folder: BundleFolder | None) -> None:
        self._store = store
        self._folder = folder

    def put(self, vid: str, bundle: str, packed: PackedVersion) -> None:
        """Raises FileNotFoundError when the version was removed meanwhile."""
        write_atomically(self._path(vid), mark_of(bundle, packed))

    def instead(self, vid: str, source: Source) -> tuple[Source, Proof | None]:
        """Where this file is to come from, and what had proved it where the bundle was made (None: this
        fetch itself does). Content that the bundle builds on is looked for by its hash, and not in it.

        What is published of the file outweighs the bundle: one that has other bytes is not asked."""
        if self._folder is None:
            return source, None
        try:
            said = json.loads(self._path(vid).read_text(encoding="utf-8"))
            bundle, file = said["bundle"], said["files"][source.path]
            if not _same(source, file) or not self._folder.path(bundle).exists():
                return source, None
            url = bundle_url(bundle, file["content"])
            known = replace(source, url=url, sha256=file["content"], size_bytes=file["size_bytes"])
            return known, Proof(file["proof"])
        except (OSError, ValueError, KeyError, TypeError):
            return source, None

    def read(self, vid: str) -> bytes | None:
        """The note as it is; None: there is none."""
        try:
            return self._path(vid).read_bytes()
        except FileNotFoundError:
            return None

    def put_back(self, vid: str, before: bytes | None) -> None:
        """As `read` found it. Raises OSError."""
        if before is None:
            self._path(vid).unlink(missing_ok=True)
        else:
            write_atomically(self._path(vid), before)

    def _path(self, vid: str) -> Path:
        return self._store.versions / vid / NAME


def _same(source: Source, noted: Mapping[str, Any]) -> bool:
    """Whether the bundle's content is what is published of the file, or nothing is."""
    if source.sha256 is not None:
        return bool(source.sha256 == noted["content"])
    return source.git_id is None or bool(source.git_id == noted.get("git_id"))
