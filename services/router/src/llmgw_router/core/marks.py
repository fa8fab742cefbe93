"""What an operator of this one router has put aside, on top of whatever the table says.

Pure. In memory only: a restart forgets it, and so does nobody else's table change it.
"""

from dataclasses import dataclass, replace

import msgspec

from llmgw_router.core.table import EndpointRow


@dataclass(frozen=True)
class Marks:
    """Names of endpoints and of replicas; a mark may name what is not in the table now, and stays."""

    endpoints: frozenset[str] = frozenset()
    replicas: frozenset[str] = frozenset()

    def with_endpoint(self, name: str, *, undo: bool) -> "Marks":
        return replace(self, endpoints=self.endpoints - {name} if undo else self.endpoints | {name})

    def with_replica(self, name: str, *, undo: bool) -> "Marks":
        return replace(self, replicas=self.replicas - {name} if undo else self.replicas | {name})

    def covers(self, row: EndpointRow) -> bool:
        return row.endpoint_id in self.endpoints or row.replica_id in self.replicas

    def on(self, row: EndpointRow) -> EndpointRow:
        """The row as workers are told it."""
        return msgspec.structs.replace(row, draining=True) if self.covers(row) and not row.draining else row

    def __bool__(self) -> bool:
        return bool(self.endpoints or self.replicas)
