"""The way of a version in pieces: taken from the mirror and other nodes, checked whole, and given on."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from llmgw_agent.adapters.piece_client import PieceClient, Table
from llmgw_agent.adapters.piece_files import PieceFiles, read_piece
from llmgw_agent.adapters.sharing import Shared, Sharing
from llmgw_agent.adapters.swarming import Peering, Swarming, present
from llmgw_agent.adapters.threads import to_its_end
from llmgw_agent.core.weights import Listing, WeightsKey
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, LlmgwError
from llmgw_kit.lifecycle import all_or_none, cancel_all

log = logging.getLogger(__name__)

#: A whole version is shared for so long after the mirror last told of a node that fetches it.
LINGER_S = 120.0
#: When the mirror does not answer, it is spoken to again after so long.
AGAIN_S = 5.0
OnBytes = Callable[[int], None]


class InPieces:
    """`sharing`: None when nothing is given to others. `chance` gives numbers from 0 to below 1."""

    def __init__(
        self, client: PieceClient, clock: Clock, chance: Callable[[], float], peering: Peering,
        sharing: Sharing | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._chance, self._peering = client, clock, chance, peering
        self._sharing = sharing if peering.url is not None else None
        self._lingering: dict[WeightsKey, asyncio.Task[None]] = {}
        self._under_way: set[Swarming] = set()
        #: Of fetches that are over.
        self._from_mirror = self._from_peers = 0

    @property
    def from_mirror(self) -> int:
        """Bytes of pieces taken from mirrors since the start."""
        return self._from_mirror + sum(one.from_mirror for one in self._under_way)

    @property
    def from_peers(self) -> int:
        """And from other nodes."""
        return self._from_peers + sum(one.from_peers for one in self._under_way)

    async def table(self, mirror: str, listing: Listing) -> Table | None:
        """How to check pieces; None: this version is better fetched in whole files. Raises Unavailable."""
        table = await self._client.table(mirror, listing)
        if table is not None and not self._peering.enabled and table.known != table.layout.all:
            # Alone there is nothing to gain by waiting until the mirror has hashed what it holds.
            return None
        return table

    async def fetch(
        self, mirror: str, listing: Listing, table: Table, folder: Path, parallel: int,
        counting: Callable[[int], OnBytes],
    ) -> None:  # fmt: skip
        """Bring all of it into `folder`. Raises LlmgwError, OSError; what came stays.

        `counting` is told how many bytes are here already, and gives what hears of each that comes."""
        await self.end(listing.key)
        files, stop = PieceFiles(folder, listing, table.layout), threading.Event()
        try:
            here = await to_its_end(present, files, table, stop, stop=stop)
            swarming = Swarming(
                self._client, mirror, listing, table, files, here, self._clock, self._chance, self._peering,
                counting(_bytes(table, here)),
            )  # fmt: skip
            if self._sharing is not None:
                shared = Shared(
                    table.layout,
                    lambda: swarming.have,
                    lambda n: read_piece(folder, listing, table.layout, n),
                )
                self._sharing.share(listing.key, shared)
            self._under_way.add(swarming)
            try:
                await swarming.run()
            finally:
                self._under_way.remove(swarming)
                self._from_mirror += swarming.from_mirror
                self._from_peers += swarming.from_peers
            log.info(
                "%s: %d bytes from the mirror, %d from other nodes", listing.key, swarming.from_mirror,
                swarming.from_peers,
            )  # fmt: skip
            await self._check(files, listing, mirror, parallel, stop)
        except BaseException:
            if self._sharing is not None:
                self._sharing.end(listing.key)
            raise
        finally:
            stop.set()

    async def _check(
        self, files: PieceFiles, listing: Listing, mirror: str, parallel: int, stop: threading.Event
    ) -> None:
        room = asyncio.Semaphore(parallel)

        async def one(file: int) -> None:
            async with room:
                wrong = await to_its_end(files.finish, file, stop, stop=stop)
                if wrong is not None:
                    raise Conflict(f"mirror {mirror}: {wrong}", code="corrupt")

        await all_or_none(one(file) for file in range(len(listing.files)))

    def published(self, mirror: str, listing: Listing, table: Table, folder: Path) -> None:
        """It lies in `folder` now; others may have it for as long as somebody wants it."""
        if self._sharing is None:
            return
        layout = table.layout
        self._sharing.share(
            listing.key, Shared(layout, lambda: layout.all, lambda n: read_piece(folder, listing, layout, n))
        )
        task = asyncio.create_task(self._linger(mirror, listing.key, table), name=f"sharing {listing.key}")
        self._lingering[listing.key] = task

    async def _linger(self, mirror: str, key: WeightsKey, table: Table) -> None:
        assert self._sharing is not None
        assert self._peering.url is not None
        layout, wanted = table.layout, self._clock.monotonic_s()
        while self._clock.monotonic_s() - wanted < LINGER_S:
            try:
                others = await self._client.speak(mirror, key, self._peering.url, layout.all, layout.count)
            except LlmgwError as e:
                log.debug("%s", e.text)
                await self._clock.sleep(AGAIN_S)
                continue
            if others.fetching:
                wanted = self._clock.monotonic_s()
            await self._clock.sleep(others.interval_s)
        with contextlib.suppress(LlmgwError):
            await self._client.leave(mirror, key, self._peering.url)
        self._sharing.end(key)
        self._lingering.pop(key, None)

    async def end(self, key: WeightsKey) -> None:
        """Give no more of it: it is being removed, or fetched again."""
        if self._sharing is not None:
            self._sharing.end(key)
        if (task := self._lingering.pop(key, None)) is not None:
            await cancel_all(task)

    async def close(self) -> None:
        """End all sharing."""
        await cancel_all(*self._lingering.values())
        self._lingering.clear()


def _bytes(table: Table, pieces: int) -> int:
    return sum(table.layout.place(n).length for n in range(table.layout.count) if pieces >> n & 1)
