"""Fetching one file: under a lease, resumed, verified, published. Observe, decide (core/transfer.py), act."""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from weakref import WeakValueDictionary

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.parts import Part
from llmgw_mirror.adapters.room import NoRoom, Room
from llmgw_mirror.adapters.shelf import Shelf
from llmgw_mirror.core.refusals import ASK_ANEW, FETCH_AGAIN, FETCH_RETRY
from llmgw_mirror.core.transfer import Want, verdict
from llmgw_mirror.core.versions import Proof, Receipt, Source, WeightsState
from llmgw_mirror.flight import FetchFailed, Flight
from llmgw_mirror.leases import let_go
from llmgw_mirror.manners import Pace, Slot, Slots
from llmgw_mirror.ports import Lease, Ledger
from llmgw_mirror.publishing import Hold, Publishing
from llmgw_mirror.transfer import Transfer

log = logging.getLogger(__name__)

#: What came is not what was published: upstream may have other content now, or damaged it.
OTHER_CONTENT = f"see whether upstream has what its publisher names; {FETCH_AGAIN}"


class LeaseLost(Exception):
    """Somebody else may fetch this file now. Nothing failed: look again."""


class VersionGone(Exception):
    """The version was removed while its file was fetched."""


class Stopped(Exception):
    """Somebody said, here or at another mirror over this store, that this file is not to be fetched."""


class Fetcher:
    """One for all flights of a mirror: they share its slots, its disk and its manners towards upstreams."""

    def __init__(self, *, shelf: Shelf, room: Room, ledger: Ledger, transfer: Transfer, clock: Clock,
                 pace: Pace, slots: Slots) -> None:  # fmt: skip
        self._shelf = shelf
        self._store = shelf.store
        self._threads = shelf.threads
        self._room = room
        self._ledger = ledger
        self._transfer = transfer
        self._clock = clock
        self._pace = pace
        self._slots = slots
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._publishing = Publishing(
            ledger=ledger, clock=clock, ttl_s=pace.lease_ttl_s, poll_s=pace.lease_poll_s / 10
        )

    async def fetch(self, vid: str, source: Source, flight: Flight) -> None:
        """Returns when the file is published. Raises FetchFailed, VersionGone or Stopped."""
        # Single-flight within the process; whoever waited finds the content, and fetches nothing.
        lock = self._keys.setdefault(flight.key, asyncio.Lock())
        told: str | None = None
        async with lock:
            while True:
                try:
                    if await self._already_here(vid, source, flight) or await self._in_turn(
                        vid, source, flight
                    ):
                        return
                    wait_s = self._pace.lease_poll_s
                except LeaseLost as e:
                    log.warning("%s: %s; looking again", source.path, e)
                    wait_s = 0.0
                except NoRoom as e:
                    raise FetchFailed(e.text, code=e.code, next_steps=e.next_steps) from e
                except OSError as e:
                    # Before or after its bytes came; whoever holds them says how many are kept.
                    raise _disk_trouble(e, None) from e
                except Unavailable as e:
                    # Once, not every other second for as long as it lasts.
                    log.log(
                        logging.DEBUG if told == e.text else logging.WARNING,
                        "%s waits: %s",
                        source.path,
                        e.text,
                    )
                    told = e.text
                    wait_s = self._pace.lease_poll_s
                await self._clock.sleep(wait_s)

    async def _already_here(self, vid: str, source: Source, flight: Flight) -> bool:
        """Published meanwhile, or the content is here under another version."""
        if await self._threads.run(self._store.has_receipt, vid, source.path):
            return True
        if await self._threads.run(self._store.stopped, vid, source.path) is not None:
            raise Stopped
        sha256 = source.sha256
        if sha256 is None or await self._threads.run(self._store.blob_size, sha256) is None:
            return False
        async with self.publishing():
            # Again: a removal may have come first.
            size = await self._threads.run(self._store.blob_size, sha256)
            if size is None:
                return False
            if (wrong := verdict(Want(None, source.size_bytes), sha256=sha256, size_bytes=size)) is not None:
                raise FetchFailed(
                    f"the content with this sha256 is here: {wrong.removesuffix('; removed')}",
                    next_steps=["correct size_bytes or sha256, whichever is mistyped"],
                )
            await self._receipt(vid, source, flight, sha256, size)
        return True

    async def _in_turn(self, vid: str, source: Source, flight: Flight) -> bool:
        """False: another mirror over this store has the lease."""
        async with self._slots.one(source.url) as slot:
            granted_at = self._clock.monotonic_s()
            lease = await self._ledger.acquire(flight.key, ttl_s=self._pace.lease_ttl_s)
            if lease is not None:
                flight.state = WeightsState.FETCHING
                await self._under(
                    lease, granted_at, flight, lambda: self._bring(vid, source, flight, lease, slot)
                )
                return True
        theirs = (await self._ledger.live()).get(flight.key)
        if theirs is not None:
            flight.follow(theirs.moving)
        return False

    async def _under(
        self, lease: Lease, granted_at: float, flight: Flight, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Work while the lease is renewed. Raises LeaseLost when it can no longer be relied on."""
        worker = asyncio.ensure_future(work())
        keeper = asyncio.create_task(self._keep(lease, granted_at, flight), name=f"lease {lease.key}")
        try:
            await asyncio.wait({worker, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                worker.result()
                return
            raise LeaseLost(keeper.result())
        finally:
            keeper.cancel()
            worker.cancel()
            await asyncio.wait({worker, keeper})
            self._room.release(lease.key)
            await let_go(self._ledger, lease)

    async def _keep(self, lease: Lease, granted_at: float, flight: Flight) -> str:
        """Renew for ever; returns why that ended."""
        ttl_s = self._pace.lease_ttl_s
        safe_until = granted_at + ttl_s * 0.8
        while True:
            await self._clock.sleep(ttl_s / 4)
            asked_at = self._clock.monotonic_s()
            try:
                if not await self._ledger.renew(lease, ttl_s=ttl_s, moving=flight.moving()):
                    return "the lease was taken over"
                safe_until = asked_at + ttl_s * 0.8
            except Unavailable as e:
                if self._clock.monotonic_s() + ttl_s / 4 > safe_until:
                    return f"the lease could not be renewed ({e.text})"

    async def _bring(self, vid: str, source: Source, flight: Flight, lease: Lease, slot: Slot) -> None:
        want = Want(source.sha256, source.size_bytes, source.git_id)
        before = await self._shelf.published_before_crash(flight.key)
        if before is not None and await self._is_right(want, *before):
            async with self.publishing():
                await self._receipt(vid, source, flight, *before)
            await self._shelf.forget(flight.key)
            return
        part = await self._shelf.take(flight.key, lease.token)
        try:
            sha256 = await self._verified(part, source, want, flight, slot)
            async with self.publishing():
                # A lease that was lost unseen ends here; the receipt below is written once besides.
                if not await self._ledger.renew(lease, ttl_s=self._pace.lease_ttl_s, moving=flight.moving()):
                    raise LeaseLost("the lease was taken over before publication")
                size = part.length
                try:
                    await part.publish(sha256)
                except FileNotFoundError:
                    raise LeaseLost("the part was removed before publication") from None
                await self._receipt(vid, source, flight, sha256, size)
        except OSError as e:
            raise _disk_trouble(e, part.length) from e
        finally:
            await part.keep()
        await self._shelf.forget(flight.key)

    async def _is_right(self, want: Want, sha256: str, size: int) -> bool:
        """Whether content in the store, fetched for whatever reason, is what is wanted."""
        git_id = None
        if want.proof is Proof.GIT:
            try:
                git_id = await self._threads.run(self._store.git_id, sha256)
            except FileNotFoundError:
                return False
        return verdict(want, sha256=sha256, size_bytes=size, git_id=git_id) is None

    async def _verified(self, part: Part, source: Source, want: Want, flight: Flight, slot: Slot) -> str:
        """Receive until whole and right; returns the hash of what is here. Raises FetchFailed."""
        flight.at(part.length)
        await part.prove()
        while True:
            await self._transfer.receive(part, source, want, flight, slot)
            flight.state = WeightsState.VERIFYING
            sha256 = await part.seal()
            git_id = await part.git_id() if want.proof is Proof.GIT else None
            wrong = verdict(want, sha256=sha256, size_bytes=part.length, git_id=git_id)
            if wrong is None:
                return sha256
            if not part.spliced:
                await part.discard()
                raise FetchFailed(wrong, next_steps=[OTHER_CONTENT, ASK_ANEW])
            # Joined from several transfers: the seam may be what is wrong. One whole transfer tells.
            log.warning(
                "%s: %s; it was joined from several transfers, so once more from 0", source.path, wrong
            )
            await part.restart()
            flight.state = WeightsState.FETCHING

    async def _receipt(self, vid: str, source: Source, flight: Flight, sha256: str, size: int) -> None:
        proof = flight.proof or Want(source.sha256, source.size_bytes, source.git_id).proof
        receipt = Receipt(sha256, size, proof, at=self._clock.unix_s())
        try:
            stands = await self._threads.run(self._store.put_receipt, vid, source.path, receipt)
        except FileNotFoundError:
            raise VersionGone from None
        # Another mirror's, which has told it, when its receipt came first.
        flight.published = receipt if stands is receipt else None

    def publishing(self) -> AbstractAsyncContextManager[Hold]:
        """See Publishing.held."""
        return self._publishing.held()


def _disk_trouble(e: OSError, kept_bytes: int | None) -> FetchFailed:
    kept = "what came before is kept" if kept_bytes is None else f"{kept_bytes} bytes are kept"
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return FetchFailed(
            f"the disk is full ({e.strerror}): {kept}",
            next_steps=[f"free some space, then go on: {FETCH_RETRY}", "or remove the version to free them"],
        )
    return FetchFailed(
        f"writing failed: {e.strerror or e}; {kept}",
        next_steps=["see what the system logs of the mirror's disk", FETCH_AGAIN],
    )
