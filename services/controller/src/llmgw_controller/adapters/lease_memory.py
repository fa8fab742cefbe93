"""The lease of a controller without a store: nobody competes, and the same rules hold all the same."""

from llmgw_controller.ports import Lease, LeaseView
from llmgw_kit.clock import Clock
from llmgw_kit.ids import LeaseTerm


class MemoryLease:
    """LeaseStore in this process; `clock`'s monotonic time decides expiry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._term = 0
        self._holder: tuple[str, str] | None = None
        self._expires_at = 0.0

    async def acquire(self, *, holder: str, address: str, ttl_s: float, above: int = 0) -> Lease | None:
        """As in the port."""
        if self._holder is not None and self._expires_at > self._clock.monotonic_s():
            return None
        self._term = max(self._term, above) + 1
        self._holder = (holder, address)
        self._expires_at = self._clock.monotonic_s() + ttl_s
        return Lease(holder, LeaseTerm(self._term), ttl_s, self._clock.unix_s())

    async def renew(self, lease: Lease) -> Lease | None:
        """As in the port."""
        if not self.is_held(lease.term):
            return None
        self._expires_at = self._clock.monotonic_s() + lease.ttl_s
        return Lease(lease.holder, lease.term, lease.ttl_s, self._clock.unix_s())

    async def release(self, lease: Lease) -> None:
        """As in the port."""
        if self.is_held(lease.term):
            self._expires_at = self._clock.monotonic_s()

    async def read(self) -> LeaseView | None:
        """As in the port."""
        if self._holder is None:
            return None
        expires_in_s = self._expires_at - self._clock.monotonic_s()
        return LeaseView(*self._holder, LeaseTerm(self._term), expires_in_s)

    async def close(self) -> None:
        """Nothing to close."""

    def is_held(self, term: LeaseTerm) -> bool:
        """The fence: whether a write under this term may land now."""
        return term == self._term and self._expires_at > self._clock.monotonic_s()
