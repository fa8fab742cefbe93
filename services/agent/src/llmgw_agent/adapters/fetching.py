"""Bringing a version onto this node: once for all who ask, resumed, verified, published at the end."""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmgw_agent.adapters.fetching_pieces import InPieces
from llmgw_agent.adapters.mirror_client import MirrorClient, OnItsWay
from llmgw_agent.adapters.threads import to_its_end
from llmgw_agent.adapters.weights_store import PartialFile, WeightsStore
from llmgw_agent.core.weights import Held, Listing, WeightsFile, WeightsKey
from llmgw_kit.clock import Clock
from llmgw_kit.errors import Conflict, InvalidRequest, LlmgwError, NotFound, Unavailable
from llmgw_kit.lifecycle import all_or_none

log = logging.getLogger(__name__)

#: Between rounds over the mirrors when none of them could help. The first is short: at a cold
#: start node and mirror are told in the same moment, and the mirror knows the version milliseconds later.
RETRY_S, MOST_RETRY_S = 0.2, 15.0
#: A mirror that does not know the version may be about to: the controller tells it at the same time.
UNKNOWN_PATIENCE_S = 20.0
#: The mirror's own fetch and ours are two halves of what people wait for.
MIRRORS_SHARE = 0.5

Progress = Callable[[float | None], None]


@dataclass(frozen=True)
class FetchLimits:
    """`parallel` files at a time; `give_up_s` without one byte of progress; `reserve_bytes` stay free."""

    parallel: int = 4
    give_up_s: float = 600.0
    reserve_bytes: int = 1 << 30


@dataclass
class _Flight:
    task: "asyncio.Task[None]"
    watchers: list[Progress] = field(default_factory=list)
    latest: float | None = None
    #: Cancelled because the last who waited left; nobody may join it any more.
    ending: bool = False


class Weights:
    """The weights of this node: the store, and the way into it."""

    def __init__(
        self, store: WeightsStore, client: MirrorClient, clock: Clock, limits: FetchLimits,
        mirrors: Sequence[str] = (), pieces: InPieces | None = None,
    ) -> None:  # fmt: skip
        """`mirrors` replace those a shard names; without `pieces` files are fetched whole."""
        self.store = store
        self._mirrors = tuple(mirrors)
        self._client = client
        self._clock = clock
        self._limits = limits
        self._pieces = pieces
        self._flights: dict[WeightsKey, _Flight] = {}
        #: Being removed: whoever fetches one waits until it is gone.
        self._leaving: dict[WeightsKey, asyncio.Task[int]] = {}

    def fetching(self, key: WeightsKey) -> bool:
        """Whether it is on its way here."""
        return key in self._flights

    def flights(self) -> dict[WeightsKey, float | None]:
        """What is on its way, with how far it is (0..1; None: unknown)."""
        return {key: flight.latest for key, flight in self._flights.items()}

    def model_path(self, key: WeightsKey, entry_file: str | None) -> Path:
        """What the engine opens. Raises NotFound."""
        return self.store.model_path(key, entry_file)

    async def held(self) -> tuple[Held, ...]:
        """All versions on disk."""
        return await asyncio.to_thread(self.store.held)

    async def remove(self, key: WeightsKey) -> int:
        """Delete it and return the bytes freed. Raises NotFound; the caller has seen that nobody uses it.

        Before the first await here it is marked as leaving: a start that comes from now on waits in `fetch`
        until it is gone, and fetches it again, rather than finding half of it. Who asked may be cancelled;
        the removal goes on, and so does the mark."""
        if key in self._leaving:
            await self._left(key)
            raise NotFound(f"{key} is not on this node")
        task = asyncio.create_task(self._remove(key), name=f"remove {key}")
        self._leaving[key] = task
        task.add_done_callback(lambda _: self._leaving.pop(key))
        return await asyncio.shield(task)

    async def _remove(self, key: WeightsKey) -> int:
        if self._pieces is not None:
            await self._pieces.end(key)
        return await asyncio.to_thread(self.store.remove, key)

    async def _left(self, key: WeightsKey) -> None:
        while (leaving := self._leaving.get(key)) is not None:
            await asyncio.wait({leaving})

    async def verify(self, key: WeightsKey, total_bytes: int, progress: Progress) -> str | None:
        """None when it is as published, else what is wrong."""
        loop = asyncio.get_running_loop()
        done = 0

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            loop.call_soon_threadsafe(progress, done / total_bytes if total_bytes else None)

        stop = threading.Event()
        try:
            return await asyncio.to_thread(self.store.verify, key, on_bytes, stop)
        finally:
            stop.set()  # a cancelled caller must not leave a thread reading

    async def fetch(self, key: WeightsKey, mirrors: Sequence[str], progress: Progress) -> Listing:
        """Make sure the version is published here. Asks no mirror when it is.

        Raises LlmgwError saying why it cannot be had."""
        await self._left(key)
        if (listing := await asyncio.to_thread(self.store.listing, key)) is not None:
            return listing
        mirrors = self._mirrors or mirrors
        if not mirrors:
            raise NotFound(f"{key} is not on this node and no mirror was named")
        while (flight := self._flights.get(key)) is not None and flight.ending:
            await asyncio.wait({flight.task})
        if flight is None:
            flight = _Flight(asyncio.create_task(self._fly(key, tuple(mirrors)), name=f"fetch {key}"))
            self._flights[key] = flight
        flight.watchers.append(progress)
        progress(flight.latest)
        try:
            await asyncio.shield(flight.task)
        finally:
            flight.watchers.remove(progress)
            if not flight.watchers and not flight.task.done():
                # Nobody waits any more; what came stays on disk.
                flight.ending = True
                flight.task.cancel()
                await asyncio.gather(flight.task, return_exceptions=True)
        listing = await asyncio.to_thread(self.store.listing, key)
        if listing is None:
            raise Unavailable(f"{key} was removed the moment it came")
        return listing

    def _tell(self, key: WeightsKey, fraction: float | None) -> None:
        flight = self._flights[key]
        flight.latest = fraction
        for watcher in flight.watchers:
            watcher(fraction)

    async def _fly(self, key: WeightsKey, mirrors: Sequence[str]) -> None:
        try:
            await _Fetch(
                self.store, self._client, self._clock, self._limits, key, mirrors, self._tell, self._pieces
            ).run()
        finally:
            del self._flights[key]


class _Fetch:
    """One version on its way."""

    def __init__(
        self, store: WeightsStore, client: MirrorClient, clock: Clock, limits: FetchLimits, key: WeightsKey,
        mirrors: Sequence[str], tell: Callable[[WeightsKey, float | None], None], pieces: InPieces | None,
    ) -> None:  # fmt: skip
        self._store, self._client, self._clock, self._limits = store, client, clock, limits
        self._key, self._mirrors, self._tell, self._pieces = key, mirrors, tell, pieces
        self._began = self._moved = clock.monotonic_s()
        self._mirror_was_fetching = False
        self._received: int | None = None

    async def run(self) -> None:
        """Round after round over the mirrors until it is published. Raises LlmgwError when it cannot be."""
        wait_s = RETRY_S
        while True:
            problems: list[LlmgwError] = []
            for mirror in self._mirrors:
                try:
                    pause_s = await self._try(mirror)
                except (NotFound, Conflict, Unavailable) as e:
                    problems.append(e)
                    continue
                if pause_s is None:
                    return
                break
            else:
                pause_s = wait_s
                wait_s = min(wait_s * 2, MOST_RETRY_S)
                self._judge(problems)
                log.warning("fetching %s: %s; again in %.1f s", self._key, problems[-1].text, pause_s)
            await self._clock.sleep(pause_s)

    def _judge(self, problems: Sequence[LlmgwError]) -> None:
        """Give up where more of the same will not help."""
        now = self._clock.monotonic_s()
        if all(isinstance(one, Conflict) and one.code == "mirror_failed" for one in problems):
            raise problems[0]
        settled = all(
            isinstance(one, NotFound | Conflict) and one.code != "listing_changed" for one in problems
        )
        if settled and now - self._began > UNKNOWN_PATIENCE_S:
            raise problems[0]
        if now - self._moved > self._limits.give_up_s:
            told = "; ".join(one.text for one in problems)
            raise Unavailable(f"no byte of {self._key} came for {self._limits.give_up_s:.0f} s: {told}")

    async def _try(self, mirror: str) -> float | None:
        """None: published. A number: the mirror is fetching; seconds until it wants to be asked again."""
        answer = await self._client.listing(mirror, self._key)
        if isinstance(answer, OnItsWay):
            self._mirror_was_fetching = True
            if answer.received_bytes != self._received:
                self._received, self._moved = answer.received_bytes, self._clock.monotonic_s()
            got, total = answer.received_bytes, answer.total_bytes
            self._tell(self._key, MIRRORS_SHARE * got / total if got is not None and total else None)
            return answer.retry_after_s
        missing = await asyncio.to_thread(self._store.missing_bytes, answer)
        free = self._store.free_bytes()
        if missing + self._limits.reserve_bytes > free:
            raise InvalidRequest(
                f"disk full: {self._key} needs {missing} more bytes, {free} are free under "
                f"{self._store.root}, {self._limits.reserve_bytes} of them held back", code="disk_full",
                next_steps=["llmgwctl weights remove, or a larger disk for the agent's data folder"],
            )  # fmt: skip
        table = None if self._pieces is None else await self._pieces.table(mirror, answer)
        try:
            folder = await asyncio.to_thread(self._store.begin, answer)
            if self._pieces is None or table is None:
                await self._download_all(mirror, answer, folder, answer.bytes - missing)
            else:
                await self._pieces.fetch(
                    mirror, answer, table, folder, self._limits.parallel,
                    lambda here: self._counting(answer, here),
                )  # fmt: skip
        except OSError as e:
            raise _disk(e, self._key) from None
        await asyncio.to_thread(self._store.publish, answer)
        if self._pieces is not None and table is not None:
            self._pieces.published(mirror, answer, table, self._store.folder(self._key) / "files")
        return None

    def _counting(self, listing: Listing, done_bytes: int) -> Callable[[int], None]:
        done = done_bytes

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            self._moved = self._clock.monotonic_s()
            first = MIRRORS_SHARE if self._mirror_was_fetching else 0.0
            if listing.bytes:
                self._tell(self._key, first + (1 - first) * done / listing.bytes)

        return on_bytes

    async def _download_all(self, mirror: str, listing: Listing, folder: Path, done_bytes: int) -> None:
        room, on_bytes = asyncio.Semaphore(self._limits.parallel), self._counting(listing, done_bytes)

        async def one(file: WeightsFile) -> None:
            async with room:
                stop = threading.Event()
                into = await to_its_end(PartialFile, folder / file.path, file, stop, stop=stop)
                try:
                    await self._client.download(mirror, self._key, file, into, on_bytes)
                    wrong = await to_its_end(into.finish)
                finally:
                    await to_its_end(into.close)
                if wrong is not None:
                    raise Conflict(f"mirror {mirror}: {wrong}", code="corrupt")

        await all_or_none(one(file) for file in listing.files)


def _disk(e: OSError, key: WeightsKey) -> LlmgwError:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return InvalidRequest(f"disk full while writing {key}", code="disk_full")
    return InvalidRequest(f"{key} cannot be written: {e}", code="disk_error")
