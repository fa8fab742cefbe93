"""Which endpoint holds a response: remembered by the worker that relayed it, found by all of them.

Cells of the slots' shared memory, one row a worker, so that there is nothing to send and nothing to wait
for: a client's next request may come to another worker within a millisecond (ADR 0026). A cell is one
64-bit word, 0 or a mark and the endpoint's slot. The mark is of the response's id and the endpoint's name
together, so a slot that was given away since finds nobody. Bounded: the oldest of a set is written over.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgw_router.relay.endpoint import EngineEndpoint
    from llmgw_router.relay.slots import Slots

_WAYS = 4
_SLOT_BITS = 20
_MARK = (1 << 43) - 1

#: Engines begin these ids so; in the first bytes of an answer, or in the first event of a stream.
_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_.-]{1,128})"')
_LOOK_BYTES = 4096


def id_in(payload: bytes) -> bytes | None:
    """The id of the response that `payload` begins."""
    found = _ID.search(payload, 0, _LOOK_BYTES)
    return None if found is None else found.group(1)


class Pins:
    """One per worker: writes its own row, reads all."""

    def __init__(self, slots: "Slots", worker: int) -> None:
        self._rows = [slots.pins_of(row) for row in range(slots.workers)]
        self._own = self._rows[worker]
        self._sets = len(self._own) // _WAYS
        self._turn = 0

    def remember(self, response_id: bytes, endpoint: "EngineEndpoint") -> None:
        """`endpoint` holds it."""
        self._turn = turn = (self._turn + 1) % _WAYS
        self._own[self._set(response_id) + turn] = _cell(response_id, endpoint)

    def holder(self, response_id: bytes, among: "Iterable[EngineEndpoint]") -> "EngineEndpoint | None":
        """The one of `among` that holds it; None: not known, here or any more."""
        at = self._set(response_id)
        cells = {cell for row in self._rows for cell in row[at : at + _WAYS] if cell}
        if not cells:
            return None
        slots = {cell & ((1 << _SLOT_BITS) - 1) for cell in cells}
        for endpoint in among:
            if endpoint.slot in slots and _cell(response_id, endpoint) in cells:
                return endpoint
        return None

    def _set(self, response_id: bytes) -> int:
        digest = blake2b(response_id, digest_size=8).digest()
        return int.from_bytes(digest, "little") % self._sets * _WAYS


def _cell(response_id: bytes, endpoint: "EngineEndpoint") -> int:
    digest = blake2b(b"%b\n%b" % (response_id, endpoint.name.encode()), digest_size=8).digest()
    # Never 0, which is an empty cell.
    return (int.from_bytes(digest, "little") & _MARK | 1) << _SLOT_BITS | endpoint.slot
