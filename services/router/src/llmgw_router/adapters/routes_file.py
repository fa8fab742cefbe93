"""The last routes on disk, so that a restarted router can route while no controller answers.

Replaced atomically and readable by its owner only: endpoints carry credentials.
"""

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import IO

import msgspec

from llmgw_kit.errors import StartupError
from llmgw_router.core.learned import CatalogEntry, Fleet, Routes
from llmgw_router.core.table import EndpointRow

log = logging.getLogger(__name__)

#: A file of another format is ignored with a warning: the controller knows all of it.
FORMAT = 1


class _File(msgspec.Struct, kw_only=True):
    format: int
    term: int | None
    version: int | None
    endpoints: list[EndpointRow]
    models: list[CatalogEntry]
    fleet: Fleet | None


class StateFolder:
    """A folder that belongs to one running router. Raises StartupError when it cannot be had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock: IO[str] = (path / "lock").open("w")
        except OSError as e:
            raise StartupError(
                f"state folder {path} cannot be used: {e.strerror}",
                next_steps=["choose another: --state-dir DIR (LLMGW_ROUTER_STATE_DIR)"],
            ) from None
        try:
            # Ends with the process, however it ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StartupError(
                f"state folder {path} is in use by another router",
                next_steps=["each router needs its own: --state-dir DIR (LLMGW_ROUTER_STATE_DIR)"],
            ) from None

    def close(self) -> None:
        self._lock.close()


class RoutesFile:
    """RoutesStore in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "routes.json"

    def load(self) -> Routes | None:
        """What was kept, or None: nothing, or nothing that can be read, which is logged."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as e:
            log.warning("kept routes in %s cannot be read and are ignored: %s", self._path, e)
            return None
        if kept.format != FORMAT:
            log.warning("kept routes in %s have format %d and are ignored", self._path, kept.format)
            return None
        return Routes(
            term=kept.term,
            version=kept.version,
            endpoints={row.endpoint_id: row for row in kept.endpoints},
            models={entry.row.name: entry for entry in kept.models},
            fleet=kept.fleet,
        )

    def save(self, routes: Routes) -> None:
        """Write and rename. Raises OSError; the old file stands then."""
        data = msgspec.json.encode(
            _File(
                format=FORMAT,
                term=routes.term,
                version=routes.version,
                endpoints=[msgspec.structs.replace(row, slot=None) for row in routes.endpoints.values()],
                models=list(routes.models.values()),
                fleet=routes.fleet,
            )
        )
        new = self._path.with_suffix(".new")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
