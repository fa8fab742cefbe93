"""The names of everything a repository had at a version's commit, beside the version: whether a file is
absent there, or only was not chosen, decides what a client may remember."""

import json
from collections.abc import Iterable

from llmgw_mirror.adapters.disk import write_atomically
from llmgw_mirror.adapters.store import Store

NAME = "listing.json"


def put_listing(store: Store, vid: str, paths: Iterable[str]) -> None:
    """Blocks. Raises FileNotFoundError when the version was removed meanwhile."""
    write_atomically(store.versions / vid / NAME, listing_bytes(paths))


def listing_bytes(paths: Iterable[str]) -> bytes:
    """The file's content."""
    return json.dumps({"paths": sorted(paths)}, ensure_ascii=False).encode() + b"\n"


def listing(store: Store, vid: str) -> frozenset[str] | None:
    """None: not known. Blocks."""
    try:
        return frozenset(json.loads((store.versions / vid / NAME).read_text(encoding="utf-8"))["paths"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
