"""One file under way: what is known of it while it moves, and the sink its bytes go into."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from llmgw_kit.clock import Clock
from llmgw_kit.errors import LlmgwError
from llmgw_mirror.adapters.parts import Part
from llmgw_mirror.core.content_keys import content_key as content_key
from llmgw_mirror.core.progress import Meter
from llmgw_mirror.core.versions import Moving, Proof, Receipt, Source, WeightsState

#: Hashed and written in one go: what comes is gathered to so much.
LOT_BYTES = 1 << 20


class FetchFailed(LlmgwError):
    """This file cannot be had; the text says why, and what became of the bytes."""

    code_default = "fetch_failed"


@dataclass
class Flight:
    """Written by the one task that fetches, read by everybody who asks."""

    source: Source
    clock: Clock
    state: WeightsState = WeightsState.FETCHING
    received_bytes: int = 0
    total_bytes: int | None = None
    meter: Meter = field(default_factory=Meter)
    #: What proved the content where it was first fetched; None: what is published of it does here.
    proof: Proof | None = None
    #: Once it is published, and by this flight.
    published: Receipt | None = None

    @property
    def key(self) -> str:
        return content_key(self.source)

    def at(self, received_bytes: int) -> None:
        """So many bytes are here."""
        self.received_bytes = received_bytes
        self.meter.note(self.clock.monotonic_s(), received_bytes)

    def follow(self, moving: Moving) -> None:
        """Another mirror over this store fetches it."""
        self.state, self.total_bytes = moving.state, moving.total_bytes
        self.at(moving.received_bytes)

    def moving(self) -> Moving:
        """What a view shows."""
        now = self.clock.monotonic_s()
        total = self.source.size_bytes if self.total_bytes is None else self.total_bytes
        return Moving(
            self.state,
            self.received_bytes,
            total,
            self.meter.rate_bytes_s(now) if self.state is WeightsState.FETCHING else None,
            self.meter.eta_s(now, total) if self.state is WeightsState.FETCHING else None,
        )


class Sink:
    """Gathers small pieces and writes them while the next ones arrive; at most two such lots in memory."""

    def __init__(self, part: Part, flight: Flight) -> None:
        self._part = part
        self._flight = flight
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        #: Bytes that came, written or not, the earlier transfers' included.
        self.received = part.length
        #: Since when we are what everybody waits for: the disk, or a cap on what may come. None: we are not.
        self._held_since: float | None = None
        self._held_s = 0.0

    async def add(self, piece: bytes) -> None:
        """Raises OSError of an earlier write."""
        self._gathered.append(piece)
        self._gathered_bytes += len(piece)
        self.received += len(piece)
        self._flight.at(self.received)
        if self._gathered_bytes >= LOT_BYTES:
            await self._settle()
            self._writing = asyncio.create_task(self._part.append(self._taken()), name="write")

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Silence meanwhile is not upstream's."""
        clock = self._flight.clock
        self._held_since = clock.monotonic_s()
        try:
            yield
        finally:
            self._held_s += clock.monotonic_s() - self._held_since
            self._held_since = None

    @property
    def held_s(self) -> float:
        """So long, all together, was upstream kept waiting."""
        since = self._held_since
        return self._held_s + (0.0 if since is None else self._flight.clock.monotonic_s() - since)

    async def flush(self) -> None:
        """Write what was gathered. Raises OSError."""
        await self._settle()
        if self._gathered:
            await self._part.append(self._taken())

    def _taken(self) -> list[bytes]:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return gathered

    async def _settle(self) -> None:
        writing = self._writing
        if writing is None:
            return
        with self.held_up():
            # Shielded: a reader that is cancelled must not cut a write short; flush waits for it.
            await asyncio.shield(writing)
        self._writing = None
