"""The keys as the supervisor holds them: what a new worker is told whole, and the others as it changes.

Pure: the pool sends what these functions return, in order.
"""

from collections.abc import Iterable, Iterator

from llmgw_router.core.keys import KeyRow, sliced
from llmgw_router.relay.ipc import KeysUpdate


class KeyBook:
    """Nothing is told before the first `replace`: until then a worker that must check keys refuses all."""

    def __init__(self) -> None:
        self._rows: dict[bytes, KeyRow] | None = None
        self._by_id: dict[str, KeyRow] = {}
        self._stale: str | None = None

    def __len__(self) -> int:
        return len(self._rows or ())

    def by_id(self, key_id: str) -> KeyRow | None:
        """A key that is good as far as anybody has said."""
        return self._by_id.get(key_id)

    def whole(self) -> Iterator[KeysUpdate]:
        """For a worker that knows nothing."""
        if self._rows is None:
            return
        yield from _in_parts(self._rows.values())
        if self._stale is not None:
            yield KeysUpdate(whole=False, stale=self._stale)

    def replace(self, rows: Iterable[KeyRow]) -> Iterator[KeysUpdate]:
        """These are all keys there are."""
        self._rows = {row.digest: row for row in rows}
        self._by_id = {row.key_id: row for row in self._rows.values()}
        self._stale = None
        yield from _in_parts(self._rows.values())

    def change(self, rows: Iterable[KeyRow], gone: Iterable[bytes]) -> Iterator[KeysUpdate]:
        """New or changed ones, and digests of those that are good no more. Without either all stay good."""
        assert self._rows is not None, "a change of keys before there were any"
        changed, away = tuple(rows), tuple(gone)
        for digest in away:
            row = self._rows.pop(digest, None)
            if row is not None:
                self._by_id.pop(row.key_id, None)
        for row in changed:
            self._rows[row.digest] = row
            self._by_id[row.key_id] = row
        self._stale = None
        if away or not changed:
            yield KeysUpdate(whole=False, gone=away)
        for part in sliced(changed) if changed else ():
            yield KeysUpdate(whole=False, keys=part)

    def stale(self, why: str) -> Iterator[KeysUpdate]:
        """Nobody can say any more which of them are good."""
        self._stale = why
        yield KeysUpdate(whole=False, stale=why)


def _in_parts(rows: Iterable[KeyRow]) -> Iterator[KeysUpdate]:
    parts = list(sliced(rows))
    last = len(parts) - 1
    for index, part in enumerate(parts):
        yield KeysUpdate(whole=True, more=index < last, keys=part)
