"""The beginning of a GGUF file: its metadata, which says what the weights are (the format's specification,
"File structure", versions 2 and 3).

Read as far as the given bytes go: what a loader needs to know stands before the vocabulary, and a vocabulary
has megabytes. Arrays are skipped; nobody here needs one.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAGIC = b"GGUF"
#: More pairs or longer texts than any file has: a count like that is damage, and would cost us its memory.
PAIRS_MAX, TEXT_MAX_BYTES = 100_000, 4 * 1024 * 1024

#: By the format's number: struct's letter and size.
_SCALARS = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
    10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
_TEXT, _ARRAY = 8, 9


class NotGguf(Exception):
    """The bytes are no GGUF, or one that we cannot read; the text says why."""


@dataclass(frozen=True)
class Metadata:
    """`pairs`: numbers, texts and truth values by key. `whole`: nothing was beyond the given bytes."""

    pairs: Mapping[str, Any]
    whole: bool


class _Short(Exception):
    """The value goes on beyond what was given."""


class _Reader:
    """Little endian; a file of the other kind has an impossible version."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise _Short
        self._at += count
        return self._data[self._at - count : self._at]

    def scalar(self, kind: int) -> Any:
        letter, size = _SCALARS[kind]
        return struct.unpack(f"<{letter}", self.take(size))[0]

    def text(self) -> str:
        length = self.scalar(10)
        if length > TEXT_MAX_BYTES:
            raise NotGguf(f"a text of {length} bytes in its metadata")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """None for an array: it is passed over."""
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            self._pass_array()
            return None
        if kind not in _SCALARS:
            raise NotGguf(f"a value of the unknown kind {kind} in its metadata")
        return self.scalar(kind)

    def _pass_array(self) -> None:
        kind, count = self.scalar(4), self.scalar(10)
        if kind in _SCALARS:
            self.take(count * _SCALARS[kind][1])
            return
        # Of arrays in arrays no writer is known; refused, they cannot be nested without end either.
        if kind != _TEXT:
            raise NotGguf(f"an array of the kind {kind} in its metadata")
        for _ in range(count):
            self.text()


def read_metadata(data: bytes) -> Metadata:
    """From the first bytes of a file. Raises NotGguf."""
    reader = _Reader(data)
    pairs: dict[str, Any] = {}
    try:
        if reader.take(4) != MAGIC:
            raise NotGguf("it does not begin as a GGUF file does")
        version = reader.scalar(4)
        if version not in (2, 3):
            raise NotGguf(f"it is of the format's version {version}; 2 and 3 are known")
        _tensors, count = reader.scalar(10), reader.scalar(10)
        if count > PAIRS_MAX:
            raise NotGguf(f"it claims {count} pairs of metadata")
        for _ in range(count):
            key, kind = reader.text(), reader.scalar(4)
            value = reader.value(kind)
            if value is not None:
                pairs[key] = value
    except _Short:
        return Metadata(pairs, whole=False)
    return Metadata(pairs, whole=True)
