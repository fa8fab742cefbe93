"""How much of a big body each step of a scan looks at."""

from collections.abc import Generator
from typing import Any, SupportsIndex, TypeVar

F = TypeVar("F")


class Looked(bytes):
    """Counts the bytes that were searched or taken out of it."""

    seen = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        found = super().find(sub, start, end)
        stop = len(self) if end is None else min(end, len(self))
        self.seen += (stop if found < 0 else found) - start
        return found

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        got = super().__getitem__(key)
        self.seen += len(got) if isinstance(got, bytes) else 1
        return got


def most_of_a_step(steps: Generator[None, None, F], body: Looked) -> tuple[F, int, int]:
    """What the scan found, the bytes of its longest step, and how many steps it took."""
    most = many = 0
    while True:
        body.seen = 0
        try:
            next(steps)
        except StopIteration as done:
            found: F = done.value
            return found, max(most, body.seen), many + 1
        most, many = max(most, body.seen), many + 1
