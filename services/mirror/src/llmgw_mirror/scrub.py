"""Scrubbing: all content is read again once in an interval, slowly, while nodes do not need the disk.

One mirror of a store at a time, under a lease. What was read when is noted in the content's own file time,
so a restart goes on with what was read longest ago.
"""

import logging
import os
import threading
from dataclasses import dataclass

from llmgw_kit.clock import Clock
from llmgw_kit.errors import Unavailable
from llmgw_mirror.adapters.disk import DiskThreads
from llmgw_mirror.adapters.open_reads import OpenReads
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.scrub import Held, next_due, pause_s, wait_s
from llmgw_mirror.core.versions import Moving, WeightsState
from llmgw_mirror.leases import let_go
from llmgw_mirror.ports import Lease, Ledger
from llmgw_mirror.proving import ContentGone, Prover

log = logging.getLogger(__name__)

#: One lease for the whole store: two at once would only read everything twice.
SCRUBBING = "scrubbing"
#: Between two looks at what is due.
LOOK_S = 600.0


class LostLease(Exception):
    """Another mirror scrubs now."""


@dataclass(frozen=True)
class ScrubPace:
    """`interval_s`: everything is read once in it. `rate_bytes_s`: at most so fast."""

    interval_s: float
    rate_bytes_s: float
    lease_ttl_s: float


class Scrub:
    """Of one mirror process, with a thread of its own that yields to all others."""

    def __init__(
        self, *, store: Store, prover: Prover, ledger: Ledger, reads: OpenReads, clock: Clock, pace: ScrubPace
    ) -> None:
        self._store = store
        self._prover = prover
        self._ledger = ledger
        self._reads = reads
        self._clock = clock
        self._pace = pace

    async def run(self) -> None:
        """For ever."""
        thread = DiskThreads(1)
        try:
            await thread.run(_be_modest)
            while True:
                try:
                    await self._clock.sleep(await self.step(thread))
                except (Unavailable, OSError) as e:
                    log.warning("scrubbing waits: %s", e.text if isinstance(e, Unavailable) else e)
                    await self._clock.sleep(LOOK_S)
        finally:
            thread.close()

    async def step(self, thread: DiskThreads) -> float:
        """Prove what was proved longest ago, if it is due. Returns how long to wait before the next step.

        Raises Unavailable."""
        held = await thread.run(self._held)
        now = self._clock.unix_s()
        due = next_due(held, now=now, interval_s=self._pace.interval_s)
        if due is None:
            return wait_s(held, now=now, interval_s=self._pace.interval_s, most_s=LOOK_S)
        lease = await self._ledger.acquire(SCRUBBING, ttl_s=self._pace.lease_ttl_s)
        if lease is None:
            return LOOK_S
        try:
            await self._prove(due, lease, thread)
        except ContentGone:
            log.debug("content %s went away while it was read", due.sha256)
        except LostLease:
            return LOOK_S
        finally:
            await let_go(self._ledger, lease)
        return 0.0

    async def _prove(self, due: Held, lease: Lease, thread: DiskThreads) -> None:
        began = renewed = self._clock.monotonic_s()

        async def on_chunk(count: int, read_bytes: int) -> None:
            nonlocal began, renewed
            yielded = 0.0
            while pause := pause_s(
                count, self._clock.monotonic_s() - began, rate_bytes_s=self._pace.rate_bytes_s,
                nodes_read=len(self._reads) > 0, yielded_s=yielded,
            ):  # fmt: skip
                before = self._clock.monotonic_s()
                await self._clock.sleep(pause)
                yielded += self._clock.monotonic_s() - before if len(self._reads) else 0.0
                renewed = await self._renewed(lease, due, read_bytes, renewed)
            began = self._clock.monotonic_s()
            renewed = await self._renewed(lease, due, read_bytes, renewed)

        await self._prover.prove(due.sha256, threads=thread, on_chunk=on_chunk)

    async def _renewed(self, lease: Lease, due: Held, read_bytes: int, before: float) -> float:
        now = self._clock.monotonic_s()
        if now - before < self._pace.lease_ttl_s / 4:
            return before
        moving = Moving(WeightsState.VERIFYING, read_bytes, due.size_bytes)
        if not await self._ledger.renew(lease, ttl_s=self._pace.lease_ttl_s, moving=moving):
            raise LostLease
        return now

    def _held(self) -> list[Held]:
        return [
            Held(sha256, *seen) for sha256 in self._store.every_blob()
            if (seen := self._store.blob_seen(sha256)) is not None
        ]  # fmt: skip


def _be_modest() -> None:
    """Last in line for the processors, and for the disk where its scheduler goes by this (ioprio_set(2):
    what has no class of its own is weighed by its nice value)."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    except OSError as e:
        log.info("the scrub runs at usual priority: %s", e)
