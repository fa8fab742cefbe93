"""One version fetched in pieces, from the mirror and from the nodes that fetch it too.

Decisions are core/pieces.py's and core/sources.py's; here they are carried out and their outcomes fed back.
One task an ask; every piece is checked against the mirror's hash before it is written or given to anybody.
"""

import asyncio
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from llmgw_agent.adapters.piece_client import Arriving, Busy, PieceClient, Table
from llmgw_agent.adapters.piece_files import PieceFiles
from llmgw_agent.adapters.threads import to_its_end
from llmgw_agent.core import sources as judging
from llmgw_agent.core.pieces import Ask, Asked, Snapshot, Source, plan_next
from llmgw_agent.core.sources import Standing
from llmgw_agent.core.weights import Listing
from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError, Unavailable

log = logging.getLogger(__name__)

#: Requests under way; a piece is in memory from its first byte until it is written.
AT_ONCE = 16
#: Between two looks at what neighbours have, and at hashes that are still being made.
POLL_S, TABLE_S = 0.5, 1.0
#: Neighbours: those the mirror named, less those that proved to be of no use.
NEIGHBOURS_MOST = 40
#: Nothing came for so long and nobody can be asked: the next mirror's turn, or a pause.
HELPLESS_S = 5.0


@dataclass(frozen=True)
class Peering:
    """How this node takes part: its URL, None when it only takes. Not `enabled`: from the mirror alone."""

    enabled: bool = True
    url: str | None = None


class Swarming:
    """Use `run` once. `on_bytes` hears of what was written."""

    def __init__(
        self, client: PieceClient, mirror: str, listing: Listing, table: Table, files: PieceFiles, here: int,
        clock: Clock, chance: Callable[[], float], peering: Peering, on_bytes: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._client, self._mirror, self._listing, self._table = client, mirror, listing, table
        self._files, self._clock, self._chance, self._peering = files, clock, chance, peering
        self._on_bytes, self._layout = on_bytes, table.layout
        self.have = here
        self._neighbours: dict[str, int] = {}
        self._standing: dict[str, Standing] = {mirror: Standing(mirror=True)}
        self._asked: dict[int, Asked] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count()
        self._look = asyncio.Event()
        self._fatal: LlmgwError | OSError | None = None
        self._moved = clock.monotonic_s()
        self.from_mirror = self.from_peers = 0

    async def run(self) -> None:
        """Until every piece is here. Raises Unavailable when nobody can give any, and OSError of the disk;
        what came stays."""
        beside = [asyncio.create_task(self._keep_table(), name="piece hashes")]
        if self._peering.enabled:
            await self._speak()
            beside.append(asyncio.create_task(self._keep_speaking(), name="peers"))
            beside.append(asyncio.create_task(self._keep_looking(), name="peers' pieces"))
        try:
            while self.have != self._layout.all:
                self._begin()
                self._judge()
                await self._next_event()
        finally:
            tasks = [*self._tasks.values(), *beside]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next_event(self) -> None:
        self._look.clear()
        # Rests end without telling anybody: looked at again soon in any case.
        waiting = asyncio.create_task(self._clock.sleep(POLL_S))
        looking = asyncio.create_task(self._look.wait())
        try:
            await asyncio.wait({waiting, looking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            looking.cancel()

    def _begin(self) -> None:
        now = self._clock.monotonic_s()
        slow = judging.slow_ones(self._standing, now)

        def source(name: str, have: int) -> Source:
            standing = self._standing.get(name, Standing())
            fit = judging.usable(standing, now) and name not in slow
            return Source(name, have, fit)

        snapshot = Snapshot(
            missing=self._table.known & ~self.have, asked=tuple(self._asked.values()),
            mirror=source(self._mirror, self._layout.all),
            peers=tuple(source(url, have) for url, have in self._neighbours.items()),
            room=AT_ONCE - len(self._asked), late_s=judging.late_s(self._standing),
        )  # fmt: skip
        for ask in plan_next(snapshot, now, self._chance):
            number = next(self._numbers)
            piece = None if ask.source == self._mirror else ask.pieces.bit_length() - 1
            self._asked[number] = Asked(ask.source, piece, now)
            task = asyncio.create_task(self._carry_out(number, ask), name=f"piece of {ask.source}")
            self._tasks[number] = task

    def _judge(self) -> None:
        """Raises what ends the fetch."""
        if self._fatal is not None:
            raise self._fatal
        if not self._asked and self._clock.monotonic_s() - self._moved > HELPLESS_S and self._table.known:
            raise Unavailable(
                f"no piece of {self._listing.key} comes from mirror {self._mirror} "
                f"or {len(self._neighbours)} other nodes"
            )

    async def _carry_out(self, number: int, ask: Ask) -> None:
        """Everything that can go wrong is the source's standing, or ends the fetch."""
        try:
            await self._take(number, ask)
        except Busy as e:
            self._stand(ask.source, judging.was_busy, e.retry_after_s, self._chance())
        except Unavailable as e:
            log.debug("%s", e.text)
            self._stand(ask.source, judging.failed)
        except OSError as e:
            self._fatal = e  # of our disk: those of links have become Unavailable
        except Exception as e:
            log.exception("a piece of %s", self._listing.key)
            self._fatal = Unavailable(f"{self._listing.key} cannot be fetched in pieces: {type(e).__name__}")
        finally:
            self._asked.pop(number, None)
            self._tasks.pop(number, None)
            self._look.set()

    async def _take(self, number: int, ask: Ask) -> None:
        key, layout, asked_at = self._listing.key, self._layout, self._clock.monotonic_s()
        if ask.source == self._mirror:
            arriving = await self._client.next(self._mirror, key, ask.pieces, layout)
            self._asked[number] = Asked(self._mirror, arriving.piece, asked_at)
        else:
            arriving = await self._client.of_peer(ask.source, key, ask.pieces.bit_length() - 1, layout)
        piece = arriving.piece
        if self.have >> piece & 1:
            arriving.close()  # it came from somebody else while this waited in line
            return
        data = await self._arrived(arriving, ask.source, asked_at)
        if data is None or self.have >> piece & 1:
            return
        await to_its_end(self._files.write, piece, data)
        if not self.have >> piece & 1:
            self.have |= 1 << piece
            self._moved = self._clock.monotonic_s()
            self._on_bytes(len(data))
            if ask.source == self._mirror:
                self.from_mirror += len(data)
            else:
                self.from_peers += len(data)
        self._let_go(piece, number)

    async def _arrived(self, arriving: Arriving, source: str, asked_at: float) -> bytes | None:
        """None: it was wrong, and its giver is blamed."""
        began = self._clock.monotonic_s()
        data = await arriving.read()
        now = self._clock.monotonic_s()
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).digest())
        if digest != self._table.hashes[arriving.piece]:
            log.warning("piece %d of %s from %s is wrong", arriving.piece, self._listing.key, source)
            self._stand(source, judging.lied, f"piece {arriving.piece} was wrong")
            return None
        before = self._standing.get(source, Standing())
        self._standing[source] = judging.gave(
            before, now, len(data), sending_s=now - began, took_s=now - asked_at
        )
        return data

    def _let_go(self, piece: int, number: int) -> None:
        """Others that were asked for it too."""
        for other, asked in tuple(self._asked.items()):
            if asked.piece == piece and other != number:
                self._tasks[other].cancel()

    def _stand(self, source: str, how: Callable[..., Standing], *more: object) -> None:
        before = self._standing.get(source, Standing(mirror=source == self._mirror))
        self._standing[source] = how(before, self._clock.monotonic_s(), *more)

    # --- what others have, and what is right

    async def _speak(self) -> float:
        """Seconds until the next time."""
        try:
            others = await self._client.speak(
                self._mirror, self._listing.key, self._peering.url, self.have, self._layout.count
            )
        except LlmgwError as e:
            # The mirror away is no reason to stop: neighbours are known, and it is asked again.
            log.debug("%s", e.text)
            return 2.0
        for url, have in others.have.items():
            if url != self._peering.url and (url in self._neighbours or self._room_for_one()):
                self._neighbours[url] = have
        self._look.set()
        return others.interval_s

    def _room_for_one(self) -> bool:
        if len(self._neighbours) < NEIGHBOURS_MOST:
            return True
        useless = [url for url in self._neighbours if self._useless(url)]
        for url in useless[:1]:
            del self._neighbours[url]
        return bool(useless)

    def _useless(self, url: str) -> bool:
        standing = self._standing.get(url, Standing())
        return standing.banned is not None or standing.failures >= 3

    async def _keep_speaking(self) -> None:
        while True:
            await self._clock.sleep(await self._speak())

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(POLL_S)
            useful = [url for url in self._neighbours if not self._useless(url)]
            await asyncio.gather(*(self._look_at(url) for url in useful))

    async def _look_at(self, url: str) -> None:
        if not judging.usable(self._standing.get(url, Standing()), self._clock.monotonic_s()):
            return
        try:
            have = await self._client.have(url, self._listing.key, self._layout.count)
        except Unavailable:
            self._stand(url, judging.failed)
            return
        if self._neighbours.get(url) != have:
            self._neighbours[url] = have
            self._look.set()

    async def _keep_table(self) -> None:
        while self._table.known != self._layout.all:
            await self._clock.sleep(TABLE_S)
            try:
                table = await self._client.table(self._mirror, self._listing)
            except Unavailable as e:
                log.debug("%s", e.text)
                continue
            if table is not None and table.layout.piece_bytes == self._layout.piece_bytes:
                self._table = table
                self._look.set()


def present(files: PieceFiles, table: Table, stop: threading.Event) -> int:
    """The pieces that are on disk already, of those that can be checked. Blocks."""
    found = 0
    for number, _ in enumerate(files.layout.sizes):
        hashes = [one for piece in files.layout.of_file(number) if (one := table.hashes[piece]) is not None]
        # All of a file's or none: the mirror makes them file by file.
        if len(hashes) == len(files.layout.of_file(number)):
            found |= files.present(number, hashes, stop)
    return found
