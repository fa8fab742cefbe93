"""Files that are whole or not there: written aside, synced, renamed."""

import json
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power cut (fsync(2), "Notes")."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` atomically. Raises OSError; the old content is then still there."""
    aside = path.with_name(f".{path.name}.part")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_whole` of an object."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


def read_json(path: Path) -> Any:
    """None when there is no such file. Raises ValueError for what is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def remove_file(path: Path) -> None:
    """Gone for good; it need not have been there."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
