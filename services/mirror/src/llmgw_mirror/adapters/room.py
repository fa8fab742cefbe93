"""Disk space: claimed before a transfer starts, so that two that cannot both end do not both begin (H9)."""

from collections.abc import Awaitable, Callable

from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.store import Store


class NoRoom(Unavailable):
    """The disk cannot take the file."""

    code_default = "disk_full"


class Room:
    """Claims of one process; those of another over the same disk show only as their bytes arrive."""

    def __init__(self, store: Store, threads: DiskThreads, *, reserve_bytes: int) -> None:
        self._store = store
        self._threads = threads
        self._reserve_bytes = reserve_bytes
        self._claims: dict[str, Callable[[], int]] = {}
        #: Frees bytes that can be spared, at least so many if there are; returns how many. Set once the rest
        #: of the mirror stands, since freeing needs what fetching needs.
        self.relieve: Callable[[int], Awaitable[int]] | None = None

    async def claim(self, key: str, remaining: Callable[[], int]) -> None:
        """Set aside what `remaining` says, now and while it shrinks. Raises NoRoom."""
        self._claims.pop(key, None)
        total, free = await self._threads.run(self._store.disk)
        lacking = remaining() + sum(claim() for claim in self._claims.values()) + self._reserve_bytes - free
        if lacking > 0 and self.relieve is not None and await self.relieve(lacking):
            total, free = await self._threads.run(self._store.disk)
        needed = remaining()
        others = sum(claim() for claim in self._claims.values())
        if needed + others + self._reserve_bytes > free:
            raise NoRoom(
                f"the disk has no room: {needed} bytes are needed, {free} of {total} are free, "
                f"{others} promised to other files, {self._reserve_bytes} kept in reserve",
                next_steps=["remove versions that nobody needs, then fetch again"],
            )
        self._claims[key] = remaining

    def release(self, key: str) -> None:
        self._claims.pop(key, None)
