"""Indexes of shards (`model.safetensors.index.json`): which files they name, held against those that exist.

An index may itself be wrong: one that names 30 shards beside 15 others makes a loader leave weights out
without a word (H19). It is told, never corrected or deleted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmgw_kit.errors import InvalidRequest
from llmgw_mirror.core.file_groups import FileGroup
from llmgw_mirror.core.names import check_path
from llmgw_mirror.core.registry_rows import NotAnAnswer, parse
from llmgw_mirror.core.weight_files import is_index, read_name

#: Indexes of the largest models have some 10 MB.
INDEX_MAX_BYTES = 64 * 1000 * 1000
#: More files than any model has.
NAMED_MAX = 10_000


@dataclass(frozen=True)
class ShardIndex:
    """What one index names, as paths of the repository."""

    path: str
    names: frozenset[str]


def named_files(path: str, value: Any) -> ShardIndex:
    """Only the values of `weight_map` are read. Raises NotAnAnswer when it names no files."""
    tensors = value.get("weight_map") if isinstance(value, Mapping) else None
    if not isinstance(tensors, Mapping) or not tensors:
        raise NotAnAnswer("it has no weight_map")
    folder = path.rpartition("/")[0]
    found: set[str] = set()
    for name in tensors.values():
        if not isinstance(name, str):
            raise NotAnAnswer("its weight_map names something that is no file")
        found.add(f"{folder}/{name}" if folder else name)
        if len(found) > NAMED_MAX:
            raise NotAnAnswer(f"it names more than {NAMED_MAX} files")
    for one in sorted(found):
        try:
            check_path(one)
        except InvalidRequest as e:
            raise NotAnAnswer(f"it names a file that is refused: {e.text}") from None
    return ShardIndex(path, frozenset(found))


def read_index(path: str, content: bytes) -> ShardIndex:
    """Raises NotAnAnswer."""
    return named_files(path, parse(content))


#: Folder, format, stem and quantisation: what an index and the shards it speaks for have in common.
Key = tuple[str, str, str, str]


def _key(path: str, quantisation: str | None = None) -> Key | None:
    name = read_name(path)
    if name is None:
        return None
    return name.folder, name.format.name, name.stem, (quantisation or name.quantisation or "").lower()


def index_key(index_path: str) -> Key | None:
    """None: it is no index, or of nothing that is weights."""
    if not is_index(index_path):
        return None
    folder, _, name = index_path.rpartition("/")
    base, _, rest = name.partition(".index.")
    # diffusers puts the variant behind the index: model.safetensors.index.fp16.json.
    return _key(f"{folder}/{base}" if folder else base, rest.rpartition(".")[0] or None)


def group_keys(group: FileGroup) -> frozenset[Key]:
    """Of each of its files."""
    keys = (_key(file.path) for file in group.files)
    return frozenset(key for key in keys if key is not None)


def belongs(index_path: str, group: FileGroup) -> bool:
    """Whether loaders would read this index for this group."""
    return index_key(index_path) in group_keys(group)


@dataclass(frozen=True)
class Mismatch:
    """`missing`: named, not listed. `left_out`: shards of the group in the index's folder that it does not
    name. `stale`: the shards are whole by their own numbers, so that it is the index which is wrong."""

    index: str
    named: int
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    stale: bool


def compared(index: ShardIndex, group: FileGroup, listed: Collection[str]) -> Mismatch | None:
    """None: it names what is there."""
    missing = tuple(sorted(name for name in index.names if name not in listed))
    folder = index.path.rpartition("/")[0]
    beside = [path for path in group.paths if path.rpartition("/")[0] == folder]
    left_out = tuple(sorted(path for path in beside if path not in index.names))
    if not missing and not left_out:
        return None
    return Mismatch(index.path, len(index.names), missing, left_out, stale=group.whole and bool(left_out))


def mismatches(
    group: FileGroup, indexes: Iterable[ShardIndex], listed: Collection[str]
) -> tuple[Mismatch, ...]:
    """Of those that loaders would read for this group."""
    keys = group_keys(group)
    own = (index for index in indexes if index_key(index.path) in keys)
    return tuple(found for index in own if (found := compared(index, group, listed)) is not None)


def unread_for(group: FileGroup, unread: Mapping[str, str]) -> tuple[str, ...]:
    """Why indexes that loaders would read for this group could not be read here. `unread`: by path."""
    keys = group_keys(group)
    return tuple(why for path, why in unread.items() if index_key(path) in keys)


def worth_reading(paths: Iterable[str], groups: Iterable[FileGroup]) -> tuple[str, ...]:
    """Indexes that some group stands or falls by."""
    keys = {key for group in groups for key in group_keys(group)}
    return tuple(sorted(path for path in paths if index_key(path) in keys))
