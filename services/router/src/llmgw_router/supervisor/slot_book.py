"""Which endpoint owns which column of the slots, and when a column may change hands."""

from collections.abc import Iterable

import msgspec

from llmgw_router.relay.ipc import EndpointRow
from llmgw_router.relay.slots import EndpointActivity, Slots


class SlotBook:
    """Assigns columns; gives one to another endpoint only when no worker can still write to it.

    That is: every worker has applied a table without the old owner, and nothing of it runs. An
    endpoint that comes back before that finds its column, and its past, again.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._free = list(range(slots.capacity - 1, -1, -1))
        self._slot_of: dict[str, int] = {}
        self._row_of: dict[str, EndpointRow] = {}
        #: Endpoints gone from the table, by the push that left them out.
        self._retired: dict[str, int] = {}

    def assign(self, rows: Iterable[EndpointRow]) -> tuple[list[EndpointRow], list[EndpointRow]]:
        """New or changed rows with their slots, and those for which no slot was left."""
        placed: list[EndpointRow] = []
        homeless: list[EndpointRow] = []
        for row in rows:
            slot = self._slot_of.get(row.endpoint_id)
            if slot is None:
                if not self._free:
                    homeless.append(row)
                    continue
                slot = self._slot_of[row.endpoint_id] = self._free.pop()
            self._retired.pop(row.endpoint_id, None)
            with_slot = msgspec.structs.replace(row, slot=slot)
            self._row_of[row.endpoint_id] = with_slot
            placed.append(with_slot)
        return placed, homeless

    def retire(self, endpoint_ids: Iterable[str], *, seq: int) -> None:
        """Push `seq` is the first without these."""
        for endpoint_id in endpoint_ids:
            if endpoint_id in self._slot_of:
                self._retired.setdefault(endpoint_id, seq)

    def reclaim(self, *, applied_seq: int) -> None:
        """Free the columns of retired endpoints that every worker has forgotten (`applied_seq` by all)."""
        for endpoint_id, seq in list(self._retired.items()):
            slot = self._slot_of[endpoint_id]
            if seq <= applied_seq and self._slots.activity(slot).in_flight == 0:
                self._slots.clear_slot(slot)
                del self._slot_of[endpoint_id], self._row_of[endpoint_id], self._retired[endpoint_id]
                self._free.append(slot)

    def in_flight(self, endpoint_id: str) -> int:
        """Requests running there, over all workers; 0 for an endpoint the book does not know."""
        slot = self._slot_of.get(endpoint_id)
        return 0 if slot is None else self._slots.activity(slot).in_flight

    def activity(self) -> list[tuple[EndpointRow, EndpointActivity]]:
        """Every endpoint that owns a column, retired ones with work left included."""
        return [
            (self._row_of[key], self._slots.activity(slot)) for key, slot in sorted(self._slot_of.items())
        ]
