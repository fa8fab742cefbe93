"""Removed versions that can be brought back: whole folders set apart, their content kept meanwhile.

    removed/<version id>.<random>/removal.json    who removed it, when, and until when it is kept
    removed/<version id>.<random>/…               the version as it was

A removal and its undoing are one rename each, so a crash leaves a version here or there. Every call here
that moves a folder is made under the publishing lease: whoever collects garbage meanwhile would otherwise
see the folder in neither place. All calls block.
"""

import json
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from llmgw_mirror.adapters.disk import sync_folder, write_atomically
from llmgw_mirror.adapters.store import Store, version_id

log = logging.getLogger(__name__)

NAME = "removal.json"


class VersionExists(Exception):
    """A version of that name was made since this one was removed."""


@dataclass(frozen=True)
class Removal:
    """One version that was removed. `contents`: bytes of what it held, by sha256."""

    id: str
    model: str
    version: str
    at: float
    until: float
    asked_by: str | None
    contents: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Held by it, also where another version holds the same."""
        return sum(self.contents.values())


def removal(
    model: str, version: str, *, at: float, until: float, asked_by: str | None, contents: Mapping[str, int]
) -> Removal:
    """Under a name of its own: the same version may be removed again before this one is forgotten."""
    vid = f"{version_id(model, version)}.{secrets.token_hex(4)}"
    return Removal(vid, model, version, at, until, asked_by, contents)


class Removals:
    """Of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "removed"

    def put(self, removed: Removal, *, for_good: bool = False) -> bool:
        """Take the version out of service. False: it is gone already. `for_good`: it is to be forgotten at
        once, and nothing is written for that: it works on a full disk."""
        folder = self._store.versions / version_id(removed.model, removed.version)
        try:
            if for_good:
                # What an earlier removal left when it was undone must not speak for this one.
                (folder / NAME).unlink(missing_ok=True)
            else:
                write_atomically(folder / NAME, json.dumps(asdict(removed)).encode() + b"\n")
            os.rename(folder, self._folder / removed.id)
        except FileNotFoundError:
            return False
        sync_folder(self._folder)
        sync_folder(self._store.versions)
        return True

    def every(self) -> list[Removal]:
        """Oldest first."""
        found = [_read(entry) for entry in self._folder.iterdir()]
        return sorted((one for one in found if one is not None), key=lambda one: (one.at, one.id))

    def sweep(self) -> None:
        """Forget what says nothing readable of itself: nothing could bring it back. It is damaged, or was
        removed for good by one that ended in that moment."""
        for entry in self._folder.iterdir():
            if _read(entry) is None:
                log.warning("removed version %s cannot be restored and is forgotten", entry.name)
                shutil.rmtree(entry, ignore_errors=True)

    def contents(self) -> set[str]:
        """Content that a removed version would need when it comes back."""
        return {sha256 for one in self.every() for sha256 in one.contents}

    def bring_back(self, removed: Removal) -> bool:
        """Into service again. False: it is no longer here. Raises VersionExists."""
        target = self._store.versions / version_id(removed.model, removed.version)
        try:
            os.rename(self._folder / removed.id, target)
        except FileNotFoundError:
            return False
        except OSError as e:
            if target.exists():
                raise VersionExists from e
            raise
        sync_folder(self._store.versions)
        sync_folder(self._folder)
        (target / NAME).unlink(missing_ok=True)
        return True

    def forget(self, removed: Removal) -> bool:
        """For good, its content left to whoever collects garbage. False: it is no longer here."""
        gone = self._store.trash / secrets.token_hex(8)
        try:
            os.rename(self._folder / removed.id, gone)
        except FileNotFoundError:
            return False
        sync_folder(self._folder)
        shutil.rmtree(gone, ignore_errors=True)
        return True


def _read(folder: Path) -> Removal | None:
    """None: it is being moved, or the disk has damaged what it says of itself; such a one keeps nothing."""
    try:
        value = json.loads((folder / NAME).read_text(encoding="utf-8"))
        return Removal(
            **{**value, "id": folder.name, "at": float(value["at"]), "until": float(value["until"])}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
