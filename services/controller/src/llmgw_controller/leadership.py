"""Standing by, leading while the lease holds, standing by again.

Leading ends before the lease does, at ttl - margin on our own monotonic clock: from there on nobody can
say that another has not taken over. What would be written later the store refuses anyway; the margin keeps
us from commanding agents meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from llmgw_controller.core.lease import LeaseTiming, may_act
from llmgw_controller.ports import Fenced, Lease, LeaseStore, LeaseView
from llmgw_kit.clock import Clock
from llmgw_kit.errors import NotLeader, Unavailable
from llmgw_kit.ids import LeaseTerm
from llmgw_kit.lifecycle import cancel_all

log = logging.getLogger(__name__)


#: Far above what a term grows to by itself, and below what a bigint holds.
TERM_MAX = 2**62


class Tenure:
    """One term of leading: whether it still holds, and the clock that its rows and decisions use."""

    def __init__(self, lease: Lease, clock: Clock, timing: LeaseTiming, *, asked_at: float) -> None:
        self.lease = lease
        self._clock = clock
        self._timing = timing
        self._renewed_at = asked_at
        self._offset = lease.db_now - clock.monotonic_s()
        self._over = False
        #: Term clock at the take-over.
        self.started = self.now()

    @property
    def term(self) -> LeaseTerm:
        """Carried by every write and every message."""
        return self.lease.term

    def now(self) -> float:
        """The term clock: the database's time at the take-over plus what has passed since, in seconds.

        Whole microseconds, as Postgres keeps them: what is read back then equals what was written."""
        return round(self._offset + self._clock.monotonic_s(), 6)

    def may_act(self) -> bool:
        """Ask before each act; false also for a process that has just been woken from a long freeze."""
        return not self._over and may_act(
            self._renewed_at,
            self._clock.monotonic_s(),
            ttl_s=self._timing.ttl_s,
            margin_s=self._timing.margin_s,
        )

    def require(self) -> None:
        """Raises Fenced when we may act no longer."""
        if not self.may_act():
            raise Fenced(f"term {self.term} ran out before it was renewed")

    def left_s(self) -> float:
        """Seconds until `may_act` turns false without a renewal."""
        return self._renewed_at + self._timing.ttl_s - self._timing.margin_s - self._clock.monotonic_s()

    def renewed(self, *, asked_at: float) -> None:
        """Counted from before the asking: the database set the expiry no earlier than that."""
        self._renewed_at = asked_at

    def end(self) -> None:
        """Nothing may be done under this term any more."""
        self._over = True


class Leadership:
    """Competes for the lease for ever; runs `reign(tenure)` while it is ours, and cancels it when not.

    `reign` ends by raising Fenced when the store refuses its term; any other end of it is a bug and ends
    `run`, after the lease was given up so that another may try."""

    def __init__(
        self,
        leases: LeaseStore,
        clock: Clock,
        *,
        name: str,
        address: str,
        timing: LeaseTiming,
        reign: Callable[[Tenure], Awaitable[None]],
    ) -> None:
        self.name = name
        self.address = address
        self._leases = leases
        self._clock = clock
        self._timing = timing
        self._reign = reign
        self._tenure: Tenure | None = None
        self._view: LeaseView | None = None
        #: Terms must pass this one: somebody has seen it.
        self._above = 0
        self._overtaken = asyncio.Event()
        self._answered_at: float | None = None
        #: The last attempt to acquire was not answered: the lease may be ours.
        self._unsure = False

    @property
    def tenure(self) -> Tenure | None:
        """The term we lead now; None while we stand by."""
        return self._tenure if self._tenure is not None and self._tenure.may_act() else None

    @property
    def leader(self) -> LeaseView | None:
        """Who leads, as last seen in the store; None when nobody is known to. May be ourselves."""
        return self._view

    def store_silent_s(self) -> float | None:
        """Seconds since the lease's store last answered; None before its first answer."""
        return None if self._answered_at is None else self._clock.monotonic_s() - self._answered_at

    def not_leading(self) -> NotLeader:
        """The refusal of a standby, naming whom to ask."""
        view = self._view
        if view is None or view.address == self.address:
            return NotLeader(
                f"controller {self.name} stands by and knows no leader now",
                leader_address=None,
                next_steps=["try again in a few seconds"],
            )
        return NotLeader(
            f"controller {self.name} stands by; {view.holder} at {view.address} leads (term {view.term})",
            leader_address=view.address,
            next_steps=[f"ask {view.address}"],
        )

    def seen(self, term: int) -> None:
        """An agent or a router has seen this term, and refuses lower ones.

        Higher than ours: either another leads and our lease is over, or the store has forgotten terms (it was
        restored from a backup, or begun anew). Both are settled by competing again, for a term above."""
        tenure = self._tenure
        if tenure is None or term <= tenure.term:
            return
        if term > TERM_MAX:
            log.error("somebody claims to have seen term %d; not followed", term)
            return
        log.warning("term %d was seen, ours is %d: competing again for a higher one", term, tenure.term)
        self._above = max(self._above, term)
        self._overtaken.set()

    async def run(self) -> None:
        """Until cancelled; then the lease is given up at once."""
        while True:
            tenure = await self._stand_by()
            await self._lead(tenure)

    async def _stand_by(self) -> Tenure:
        while True:
            wait_s = self._timing.retry_s
            try:
                view = await self._leases.read()
                self._heard(view)
                if view is None or view.expires_in_s <= 0 or self._unsure:
                    self._unsure = True
                    asked_at = self._clock.monotonic_s()
                    lease = await self._leases.acquire(
                        holder=self.name,
                        address=self.address,
                        ttl_s=self._timing.ttl_s,
                        above=self._above,
                    )
                    self._unsure = False
                    if lease is not None:
                        self._heard(LeaseView(self.name, self.address, lease.term, lease.ttl_s))
                        return Tenure(lease, self._clock, self._timing, asked_at=asked_at)
                else:
                    wait_s = min(wait_s, view.expires_in_s)
            except Unavailable as e:
                log.warning("standing by: %s; again in %.1f s", e.text, wait_s)
                self._view = None
            await self._clock.sleep(max(wait_s, 0.05))

    def _heard(self, view: LeaseView | None) -> None:
        self._answered_at = self._clock.monotonic_s()
        before, self._view = self._view, view if view is not None and view.expires_in_s > 0 else None
        if self._view is not None and (before is None or before.term != self._view.term):
            log.info("%s at %s leads, term %d", self._view.holder, self._view.address, self._view.term)

    async def _lead(self, tenure: Tenure) -> None:
        log.info("leading: term %d, lease of %.0f s", tenure.term, self._timing.ttl_s)
        self._tenure = tenure
        reigning = asyncio.create_task(self._reign_until_fenced(tenure), name=f"reign of term {tenure.term}")
        renewing = asyncio.create_task(self._renew(tenure), name=f"lease of term {tenure.term}")
        self._overtaken.clear()
        overtaken = asyncio.create_task(self._overtaken.wait(), name="a higher term")
        lost = False
        try:
            done, _ = await asyncio.wait({reigning, renewing, overtaken}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {overtaken}:
                log.warning("term %d is over: %s", tenure.term, task.result())
                lost = True
        finally:
            tenure.end()
            self._tenure = None
            self._view = None
            await cancel_all(reigning, renewing, overtaken)
            if not lost:
                await self._give_up(tenure)

    async def _reign_until_fenced(self, tenure: Tenure) -> str:
        try:
            await self._reign(tenure)
        except Fenced as e:
            return e.text
        raise AssertionError("a reign ended by itself")

    async def _renew(self, tenure: Tenure) -> str:
        """Returns why the lease is ours no longer."""
        wait_s = self._timing.renew_s
        while True:
            await self._clock.sleep(max(0.0, min(wait_s, tenure.left_s())))
            if tenure.left_s() <= 0:
                return "the lease was not renewed in time"
            asked_at = self._clock.monotonic_s()
            try:
                # No longer than we may act: then leading ends, whatever the store still says.
                async with asyncio.timeout(tenure.left_s()):
                    renewed = await self._leases.renew(tenure.lease)
            except (Unavailable, TimeoutError) as e:
                log.warning("%s; %.1f s until leading ends", e or "no answer for the lease", tenure.left_s())
                wait_s = self._timing.retry_s
                continue
            if renewed is None:
                return "another holds the lease, or it ran out"
            self._answered_at = self._clock.monotonic_s()
            tenure.renewed(asked_at=asked_at)
            wait_s = self._timing.renew_s

    async def _give_up(self, tenure: Tenure) -> None:
        # A store that does not answer now lets the lease run out by itself.
        with suppress(Unavailable):
            await self._leases.release(tenure.lease)
            log.info("gave up the lease of term %d", tenure.term)
