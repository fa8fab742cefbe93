"""Versions as they were read from the disk, until their folders change.

Every list, pass and look for what is needed reads all versions; a version of ten files is as many small files
on the disk. A folder's time of change tells whether it has to be read again: every act on a version makes,
links, renames or removes a file in its folder.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from llmgw_kit.clock import Clock

T = TypeVar("T")

#: Two changes in one tick of the file system's clock leave the same time behind. What changed so short ago
#: is read again each time.
TICK_S = 2.0
#: Where the disk's clock is another machine's, the times prove less: no reading is trusted for longer.
TRUSTED_S = 300.0


@dataclass(frozen=True)
class Mark:
    """Of a folder, taken before it is read."""

    inode: int
    changed_ns: int


@dataclass(frozen=True)
class _Reading(Generic[T]):
    mark: Mark
    value: T
    until: float


def mark_of(folder: str) -> Mark | None:
    """None: it is not there. Blocks."""
    try:
        seen = os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Mark(seen.st_ino, seen.st_mtime_ns)


class Remembered(Generic[T]):
    """By name of the folder; from any thread. What is given back is shared: nobody changes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readings: dict[str, _Reading[T]] = {}

    def __len__(self) -> int:
        return len(self._readings)

    def recall(self, name: str, mark: Mark) -> T | None:
        """None: it has to be read."""
        reading = self._readings.get(name)
        if reading is None or reading.mark != mark or self._clock.monotonic_s() >= reading.until:
            return None
        return reading.value

    def note(self, name: str, mark: Mark, value: T) -> None:
        """What was read after the mark was taken; not kept where a further change could hide."""
        if self._clock.unix_s() - mark.changed_ns / 1e9 > TICK_S:
            self._readings[name] = _Reading(mark, value, self._clock.monotonic_s() + TRUSTED_S)

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        for name in self._readings.keys() - set(names):
            self._readings.pop(name, None)
