"""A static endpoint whose address changes is another endpoint: nothing of the old one's past is its own.

Pure. The first address under a name keeps the plain name, so that a fleet that never changes reads as it
was written; each later one gets `~2`, `~3` ... One that comes back with its old address is the same again.
"""

from collections.abc import Iterable

import msgspec

from llmgw_router.core.table import EndpointRow

Address = tuple[str, int, bool, str]


class Generations:
    """Remembers which addresses a name has had."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Address, int]] = {}

    def named(self, rows: Iterable[EndpointRow]) -> tuple[EndpointRow, ...]:
        """The rows with the ids and epochs under which the table knows them."""
        return tuple(self._named(row) for row in rows)

    def _named(self, row: EndpointRow) -> EndpointRow:
        known = self._known.setdefault(row.replica_id, {})
        address = (row.host, row.port, row.tls, row.base_path)
        generation = known.setdefault(address, len(known) + 1)
        if generation == 1:
            return row
        return msgspec.structs.replace(
            row, endpoint_id=f"{row.endpoint_id}~{generation}", group_epoch=generation
        )
