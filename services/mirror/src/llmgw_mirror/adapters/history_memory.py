"""The history where no database is: the newest lines of this process, each in the log too."""

import logging
from collections import deque
from collections.abc import Sequence

from llmgw_mirror.core.history import Entry

log = logging.getLogger(__name__)

#: Lines kept; older ones are in the log alone.
KEPT = 1000


class MemoryHistory:
    """See ports.History."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)

    async def note(self, entry: Entry) -> None:
        self._entries.append(entry)
        log.info("%s: %s %s: %s", entry.kind.value, entry.model, entry.version, entry.text)

    async def newest(
        self, *, model: str | None, version: str | None, since: float | None, limit: int
    ) -> Sequence[Entry]:
        return [
            entry
            for entry in reversed(self._entries)
            if model in (None, entry.model)
            and version in (None, entry.version)
            and (since is None or entry.at >= since)
        ][:limit]

    async def prune(self, *, before: float, most: int) -> int:
        kept = [entry for n, entry in enumerate(self._entries) if n >= most or entry.at >= before]
        pruned = len(self._entries) - len(kept)
        self._entries = deque(kept, maxlen=KEPT)
        return pruned
