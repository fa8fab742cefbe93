"""Recorded statuses of a controller without a database: the newest few, gone with the process."""

from collections import deque

from llmgw_controller.adapters.lease_memory import MemoryLease
from llmgw_controller.ports import Fenced, StatusRecord
from llmgw_kit.ids import LeaseTerm

#: All records together.
BYTES_MOST = 32 * 1024 * 1024


class MemoryHistory:
    """History in a list, oldest first. `lease` is the fence."""

    def __init__(self, lease: MemoryLease, bytes_most: int = BYTES_MOST) -> None:
        self._lease = lease
        self._bytes_most = bytes_most
        self._records: deque[StatusRecord] = deque()

    async def record(self, term: LeaseTerm, at: float, status: bytes) -> None:
        """As in the port."""
        self._require(term)
        while self._records and self._records[-1].at >= at:
            self._records.pop()
        self._records.append(StatusRecord(at, term, status))
        self._bound()

    async def newest(self, at: float) -> StatusRecord | None:
        """As in the port."""
        return next((one for one in reversed(self._records) if one.at <= at), None)

    async def span(self) -> tuple[float, float] | None:
        """As in the port."""
        return (self._records[0].at, self._records[-1].at) if self._records else None

    async def thin(self, term: LeaseTerm, *, before: float, minutes_before: float) -> int:
        """As in the port."""
        self._require(term)
        had = len(self._records)
        kept: list[StatusRecord] = []
        for one in self._records:
            if one.at < before:
                continue
            if kept and one.at < minutes_before and kept[-1].at // 60 == one.at // 60:
                kept.pop()  # Of each minute the last.
            kept.append(one)
        self._records = deque(kept)
        return had - len(kept)

    def _bound(self) -> None:
        total = sum(len(one.status) for one in self._records)
        while total > self._bytes_most and len(self._records) > 1:
            total -= len(self._records.popleft().status)

    def _require(self, term: LeaseTerm) -> None:
        if not self._lease.is_held(term):
            raise Fenced(f"term {term} holds the lease no longer; no status recorded")
