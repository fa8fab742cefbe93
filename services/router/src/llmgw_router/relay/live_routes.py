"""The worker's table with the endpoints themselves in it: what a pick is made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgw_router.core.table import EndpointRow, ModelRow
from llmgw_router.core.table_index import Change, TableIndex
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
        self._index = TableIndex()
        #: Some model has, or has had, more than one endpoint to choose from.
        self.contested = False
        #: Model names and aliases alike.
        self.targets: dict[str, LiveTarget] = {}
        self._endpoints: dict[str, EngineEndpoint] = {}
        #: Gone from the table with requests that still run there. One that comes back meanwhile is the
        #: same one: a second object would count from zero over what the first still writes.
        self._gone: dict[str, EngineEndpoint] = {}
        self._seq = 0

    @property
    def known(self) -> bool:
        """False until the supervisor has published routes: the pool's own first table has seq 0."""
        return self._seq > 0

    def endpoints(self) -> Iterable[EngineEndpoint]:
        return self._endpoints.values()

    def find(self, endpoint_id: str) -> EngineEndpoint | None:
        """None: not in the table."""
        return self._endpoints.get(endpoint_id)

    def apply(self, update: ipc.TableUpdate) -> None:
        """Swap the table for a whole one. From here on no pick is made from the old one."""
        self._change(self._index.difference(update.endpoints, update.models), update)

    def apply_delta(self, delta: ipc.TableDelta) -> None:
        """Change what differs from the push before. From here on no pick is made from the old rows."""
        self._change(
            Change(
                endpoints=delta.endpoints,
                models=delta.models,
                gone_endpoints=frozenset(delta.gone_endpoints),
                gone_models=frozenset(delta.gone_models),
            ),
            delta,
        )

    def _change(self, change: Change, push: ipc.TableUpdate | ipc.TableDelta) -> None:
        hub = self._hub
        self._seq = push.seq
        names = self._index.change(change)
        leaving: list[EngineEndpoint] = []
        for row in change.endpoints:
            if row.slot is not None:
                endpoint = self._upsert(row)
                if endpoint.leaving:
                    leaving.append(endpoint)
        for endpoint_id in change.gone_endpoints:
            gone = self._endpoints.pop(endpoint_id, None)
            if gone is not None:
                gone.leaving = True
                leaving.append(gone)
                if gone.in_flight:
                    self._gone[endpoint_id] = gone
        self._retarget(names)
        hub.counters[_APPLIED] += 1
        hub.tell(ipc.Applied(seq=push.seq, term=push.term, version=push.version))
        for endpoint in leaving:
            endpoint.close_idle()
        drained = tuple(endpoint.name for endpoint in leaving if not endpoint.in_flight)
        if drained:
            hub.tell(ipc.DrainedEndpoints(seq=push.seq, endpoint_ids=drained))
        hub.room.table_changed()

    def _retarget(self, names: Iterable[str]) -> None:
        live: dict[int, LiveTarget] = {}
        for name in names:
            target = self._index.targets.get(name)
            if target is None:
                self.targets.pop(name, None)
                continue
            made = live.get(id(target))
            if made is None:
                endpoints = tuple(self._endpoints[endpoint_id] for endpoint_id in target.endpoint_ids)
                self.contested = self.contested or len(endpoints) > 1
                made = live[id(target)] = LiveTarget(target.model, endpoints)
            self.targets[name] = made

    def _upsert(self, row: EndpointRow) -> EngineEndpoint:
        endpoint = self._endpoints.get(row.endpoint_id)
        if endpoint is None:
            endpoint = self._gone.pop(row.endpoint_id, None)
            if endpoint is None:
                endpoint = EngineEndpoint(row, self._slots, self._hub.worker, self._hub.warden, self._drained)
            else:
                endpoint.update(row)
                self._hub.warden.returned(endpoint)
            self._endpoints[row.endpoint_id] = endpoint
        elif endpoint.row != row:
            endpoint.update(row)
        return endpoint

    def _drained(self, endpoint: EngineEndpoint) -> None:
        self._gone.pop(endpoint.name, None)
        self._hub.tell(ipc.DrainedEndpoints(seq=self._seq, endpoint_ids=(endpoint.name,)))
