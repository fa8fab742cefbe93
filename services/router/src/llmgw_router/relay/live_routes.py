"""The worker's table with the endpoints themselves in it: what a pick is made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw_router.core.table import EndpointRow, ModelRow, build
from llmgw_router.relay import ipc
from llmgw_router.relay.endpoint import EngineEndpoint
from llmgw_router.relay.slots import COUNTER, Slots

if TYPE_CHECKING:
    from llmgw_router.relay.hub import Hub

_APPLIED = COUNTER["tables_applied"]


@dataclass(frozen=True, slots=True)
class LiveTarget:
    """A table's target with the endpoints themselves."""

    model: ModelRow
    endpoints: tuple[EngineEndpoint, ...]


class LiveRoutes:
    """One per worker. `targets` is looked up by every request; the rest changes with each push."""

    def __init__(self, hub: "Hub", slots: Slots) -> None:
        self._hub = hub
        self._slots = slots
        #: Model names and aliases alike.
        self.targets: dict[str, LiveTarget] = {}
        self._endpoints: dict[str, EngineEndpoint] = {}
        self._seq = 0

    @property
    def known(self) -> bool:
        """False until the supervisor has published routes: the pool's own first table has seq 0."""
        return self._seq > 0

    def endpoints(self) -> Iterable[EngineEndpoint]:
        return self._endpoints.values()

    def apply(self, update: ipc.TableUpdate) -> None:
        """Swap the table. From here on no pick is made from the old one."""
        hub = self._hub
        table = build(update.endpoints, update.models)
        for endpoint_id, row in table.endpoints.items():
            if row.slot is not None:
                self._upsert(endpoint_id, row)
        drained: list[str] = []
        self._seq = update.seq
        for endpoint_id in list(self._endpoints):
            endpoint = self._endpoints[endpoint_id]
            if endpoint_id not in table.endpoints:
                del self._endpoints[endpoint_id]
                endpoint.leaving = True
            if endpoint.leaving:
                endpoint.close_idle()
                if not endpoint.in_flight:
                    drained.append(endpoint_id)
        live: dict[int, LiveTarget] = {}
        targets: dict[str, LiveTarget] = {}
        for name, target in table.by_name.items():
            made = live.get(id(target))
            if made is None:
                endpoints = tuple(self._endpoints[endpoint_id] for endpoint_id in target.endpoint_ids)
                made = live[id(target)] = LiveTarget(target.model, endpoints)
            targets[name] = made
        self.targets = targets
        hub.counters[_APPLIED] += 1
        hub.tell(ipc.Applied(seq=update.seq, term=update.term, version=update.version))
        if drained:
            hub.tell(ipc.DrainedEndpoints(seq=update.seq, endpoint_ids=tuple(drained)))
        hub.room.table_changed()

    def _upsert(self, endpoint_id: str, row: EndpointRow) -> None:
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            self._endpoints[endpoint_id] = EngineEndpoint(row, self._slots, self._hub.worker, self._drained)
        elif endpoint.row != row:
            before = endpoint.row
            endpoint.update(row)
            if (before.host, before.port, before.tls) != (row.host, row.port, row.tls):
                endpoint.close_idle()

    def _drained(self, endpoint: EngineEndpoint) -> None:
        self._hub.tell(ipc.DrainedEndpoints(seq=self._seq, endpoint_ids=(endpoint.name,)))
