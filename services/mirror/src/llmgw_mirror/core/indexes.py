"""What the index of a sharded model says of its shards, held against what a version has."""

import json
from collections.abc import Collection
from posixpath import dirname, join

#: An index names every tensor once; those of the largest models have a few megabytes.
INDEX_MAX_BYTES = 64 << 20


def is_index(path: str) -> bool:
    """`model.safetensors.index.json` and its like."""
    return path.endswith(".index.json")


def named_shards(path: str, content: bytes) -> frozenset[str] | None:
    """Paths of the files that the index at `path` names; None: it cannot be read as an index."""
    try:
        names = set(json.loads(content)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    return frozenset(join(dirname(path), name) for name in names)


def lacking(named: Collection[str], paths: Collection[str]) -> list[str]:
    """Files that an index names and the version lacks."""
    return sorted(set(named) - set(paths))
