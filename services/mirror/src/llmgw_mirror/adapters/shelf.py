"""All parts of a store: found by their keys, taken over from whoever left them, collected.

A part is handed on by rename when its writer has let go of it or is provably gone, and by copy
otherwise, since a writer that only lost its lease may still hold it open.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from llmgw_mirror.adapters.disk import READ_BYTES, TEMPORARY, DiskThreads, write_atomically
from llmgw_mirror.adapters.owners import provably_gone, same_boot, this_process
from llmgw_mirror.adapters.parts import Label, Part, read_label, remove_part
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.content_keys import key_id


class Shelf:
    """All parts of one store, for one mirror process."""

    def __init__(self, store: Store, threads: DiskThreads, *, holder: str) -> None:
        self.store = store
        self.threads = threads
        self._holder = holder
        self._me = this_process()

    async def take(self, key: str, token: int) -> Part:
        """The part of this key, with what an earlier writer left of it. The caller holds the key's lease
        under `token`."""
        path = self.store.parts / f"{key_id(key)}.{token}.{self._holder}.part"
        return await self.threads.run(self._take, key, path)

    def _take(self, key: str, path: Path) -> Part:
        found = [
            (p, label) for p in self._parts_of(key) if (label := read_label(p)) is not None and p != path
        ]
        found = [(p, label) for p, label in found if label.key == key and p.exists()]
        found.sort(key=lambda one: _trusted(*one), reverse=True)
        label = Label(key, self._me)
        if found:
            best, old = found[0]
            length = _trusted(best, old)
            label = replace(
                old, owner=self._me, released=False, sha256=None, synced_bytes=min(old.synced_bytes, length)
            )
            gone = old.released or provably_gone(old.owner)
            if not gone:
                label = replace(label, synced_bytes=0)
            # The label first: a part without one belongs to nobody, and is collected.
            write_atomically(path.with_suffix(".json"), label.dump())
            if gone:
                # Two names for a moment: a crash in between loses neither bytes nor label.
                os.link(best, path)
            else:
                _copy(best, path, length)
            os.truncate(path, length)
            for other, _ in found:
                # Removing is safe even under a writer: it goes on into a file without a name, and its
                # publication fails. Only taking its bytes needs proof.
                remove_part(other)
        else:
            write_atomically(path.with_suffix(".json"), label.dump())
        return Part(self.store, self.threads, path, label)

    async def published_before_crash(self, key: str) -> tuple[str, int] | None:
        """Content of this key that reached its place just before its writer died: (sha256, bytes)."""

        def act() -> tuple[str, int] | None:
            for path in self._parts_of(key):
                label = read_label(path)
                if label is None or label.key != key or label.sha256 is None or path.exists():
                    continue
                size = self.store.blob_size(label.sha256)
                if size is not None:
                    return label.sha256, size
            return None

        return await self.threads.run(act)

    async def forget(self, key: str) -> None:
        """After publication: what is left of this key's parts."""

        def act() -> None:
            for path in self._parts_of(key):
                remove_part(path)

        await self.threads.run(act)

    async def everything(self) -> dict[Path, str | None]:
        """Every part with its key; None: its label is gone.

        To collect garbage, list first and ask second what is wanted and live: a part made in between
        is not in the list, and one in the list had its wish before it."""

        def act() -> dict[Path, str | None]:
            paths = {
                p.with_suffix(".part")
                for p in self.store.parts.iterdir()
                if p.suffix in (".part", ".json") and not p.name.startswith(TEMPORARY)
            }
            return {path: label.key if (label := read_label(path)) else None for path in sorted(paths)}

        return await self.threads.run(act)

    async def lengths(self) -> dict[str, int]:
        """By key: the bytes that are here of it."""

        def act() -> dict[str, int]:
            found: dict[str, int] = {}
            for path in self.store.parts.glob("*.part"):
                label = read_label(path)
                if label is not None and path.exists():
                    found[label.key] = max(found.get(label.key, 0), path.stat().st_size)
            return found

        return await self.threads.run(act)

    async def sealed(self) -> set[str]:
        """Hashes of parts that were verified and are on their way to be published."""

        def act() -> set[str]:
            labels = [read_label(path) for path in self.store.parts.glob("*.json")]
            return {label.sha256 for label in labels if label is not None and label.sha256 is not None}

        return await self.threads.run(act)

    async def remove(self, paths: Iterable[Path]) -> int:
        """Returns the bytes freed."""
        doomed = list(paths)

        def act() -> int:
            freed = 0
            for path in doomed:
                freed += path.stat().st_size if path.exists() else 0
                remove_part(path)
            return freed

        return await self.threads.run(act)

    def _parts_of(self, key: str) -> list[Path]:
        return sorted({p.with_suffix(".part") for p in self.store.parts.glob(f"{key_id(key)}.*")})


def _trusted(part: Path, label: Label) -> int:
    """Bytes that are what was received: all of them unless the machine went down since, which may leave
    a right length over blocks that were never written."""
    length = part.stat().st_size
    return length if same_boot(label.owner) else min(length, label.synced_bytes)


def _copy(source: Path, target: Path, length: int) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        left = length
        while left and (piece := reader.read(min(READ_BYTES, left))):
            writer.write(piece)
            left -= len(piece)
