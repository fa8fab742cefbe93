"""What routers are told: where ready replicas answer, what the catalog holds, and a few fleet numbers.

Level-triggered: the table is computed whole at each pass, and a delta is only the difference of two.
A new leader in its learning window takes nothing from the table but what it has seen exit.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import ceil

from llmgw_controller.core.availability import Availability, model_state
from llmgw_controller.core.catalog import Model
from llmgw_controller.core.claims import Use, rooms
from llmgw_controller.core.deployments import created_at
from llmgw_controller.core.fabrics import fabrics
from llmgw_controller.core.hearing import NodeState
from llmgw_controller.core.reach import reach
from llmgw_controller.core.replica import is_serving
from llmgw_controller.core.rows import NodeRow, Phase, ReplicaRow, Wish
from llmgw_controller.core.state import Snapshot
from llmgw_kit.ids import ModelId, NodeId, ReplicaId

#: ETAs are told in steps of so many seconds, so that a countdown is not a delta at every pass.
ETA_STEP_S = 5.0


@dataclass(frozen=True)
class Endpoint:
    """Where one ready replica answers: its first shard's address and "http" port."""

    endpoint_id: str
    replica_id: ReplicaId
    group_epoch: int
    model: ModelId
    url: str
    pool: str
    weight: int
    node_id: NodeId
    draining: bool
    credential: str | None
    #: Requests that it runs at once before others wait in the engine; None: unknown.
    concurrency: int | None = None


@dataclass(frozen=True)
class CatalogModel:
    model: ModelId
    aliases: tuple[str, ...]
    availability: Availability
    reason: str | None
    activatable: bool
    hold_timeout_s: float
    max_held: int
    eta_s: float | None
    #: Unix seconds when it was first stored; None: unknown.
    created: int | None = None
    #: Of `max_held`, one tenant's share at most; None: nothing is said of single tenants.
    max_held_per_tenant: int | None = None


@dataclass(frozen=True)
class FleetClass:
    """The parts add up to the total. Not split by idleness: that moves with every request, and each change
    is a version of the table for every router."""

    gpu_class: str
    total: int = 0
    free: int = 0
    unhealthy: int = 0
    claimed: int = 0
    foreign: int = 0
    cordoned: int = 0


@dataclass(frozen=True)
class FleetFabric:
    fabric: str
    nodes: int
    whole_free: int


@dataclass(frozen=True)
class FleetSummary:
    classes: tuple[FleetClass, ...] = ()
    replicas_ready: int = 0
    replicas_wanted: int = 0
    models_unplaceable: int = 0
    nodes_heard: int = 0
    nodes_silent: int = 0
    nodes_lost: int = 0
    fabrics: tuple[FleetFabric, ...] = ()
    #: Of the catalog, how many in each state.
    models: tuple[tuple[Availability, int], ...] = ()


@dataclass(frozen=True)
class RouteTable:
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    models: dict[ModelId, CatalogModel] = field(default_factory=dict)
    fleet: FleetSummary = field(default_factory=FleetSummary)


@dataclass(frozen=True)
class RouteDelta:
    upsert_endpoints: tuple[Endpoint, ...]
    remove_endpoint_ids: tuple[str, ...]
    upsert_models: tuple[CatalogModel, ...]
    remove_model_ids: tuple[ModelId, ...]
    fleet: FleetSummary


def routes(snapshot: Snapshot, now: float) -> RouteTable:
    """The whole table at `now`; from the rows as the pass has left them."""
    found = _endpoints(snapshot, now)
    models = {model.name: _model(snapshot, model, now) for model in snapshot.catalog.sorted_models()}
    states = Counter(model.availability for model in models.values())
    return RouteTable(
        {endpoint.endpoint_id: endpoint for endpoint in found},
        models,
        fleet_summary(snapshot, tuple((state, states[state]) for state in Availability), now),
    )


def diff(old: RouteTable, new: RouteTable) -> RouteDelta | None:
    """What turns `old` into `new`; None when they are equal."""
    if old == new:
        return None
    return RouteDelta(
        tuple(one for key, one in sorted(new.endpoints.items()) if old.endpoints.get(key) != one),
        tuple(sorted(old.endpoints.keys() - new.endpoints.keys())),
        tuple(one for name, one in sorted(new.models.items()) if old.models.get(name) != one),
        tuple(sorted(old.models.keys() - new.models.keys())),
        new.fleet,
    )


def fleet_summary(
    snapshot: Snapshot, models: tuple[tuple[Availability, int], ...], now: float
) -> FleetSummary:
    """From the same rooms as placement and the views."""
    found = rooms(snapshot, now)
    uses: dict[str, Counter[Use]] = {}
    for room in found.values():
        for device in room.devices:
            uses.setdefault(device.gpu_class, Counter())[device.use] += 1
    states = Counter(room.state for room in found.values())
    routable = reach(snapshot, now).routable
    rows = [row for row in snapshot.stored.replicas.values() if row.wish is Wish.SERVE]
    return FleetSummary(
        tuple(
            FleetClass(name, sum(counts.values()), **{use.value: counts[use] for use in Use})
            for name, counts in sorted(uses.items())
        ),
        replicas_ready=sum(row.replica_id in routable for row in rows),
        replicas_wanted=len(rows),
        models_unplaceable=len({row.model for row in rows if row.phase is Phase.UNPLACEABLE}),
        nodes_heard=states[NodeState.READY],
        nodes_silent=states[NodeState.UNREACHABLE] + states[NodeState.ENROLLED],
        nodes_lost=states[NodeState.LOST],
        fabrics=tuple(
            FleetFabric(line.fabric, line.nodes, line.whole_free) for line in fabrics(found, frozenset())
        ),
        models=models,
    )


def endpoint_url(snapshot: Snapshot, row: ReplicaRow) -> str | None:
    """None while the replica has no place, or its node is not known."""
    head = next((shard for shard in row.shards if shard.rank == 0), None)
    node = snapshot.stored.nodes.get(head.node_id) if head else None
    port = head.port("http") if head else None
    if node is None or port is None:
        return None
    host = f"[{node.address}]" if ":" in node.address and not node.address.startswith("[") else node.address
    return f"http://{host}:{port}"


#: An endpoint, after all that it follows from.
_Kept = tuple[ReplicaRow, NodeRow, Model | None, Endpoint]


def _endpoints(snapshot: Snapshot, now: float) -> list[Endpoint]:
    """By replica. Those of a row, a node and a model that have not moved are the very same as before:
    comparing two tables, which each pass does, looks only at what differs."""
    kept: dict[ReplicaId, _Kept] = snapshot.found.get("endpoints", {})
    routable = reach(snapshot, now).routable
    found: dict[ReplicaId, _Kept] = {}
    for row in snapshot.stored.sorted_replicas:
        draining = row.phase is Phase.DRAINING and is_serving(row, snapshot, now)
        if not (draining or row.replica_id in routable):
            continue
        head = min(row.shards, key=lambda shard: shard.rank)
        node = snapshot.stored.nodes.get(head.node_id)
        model = snapshot.catalog.models.get(row.model)
        before = kept.get(row.replica_id)
        if before is not None and before[0] is row and before[1] is node and before[2] is model:
            found[row.replica_id] = before
        elif node is not None and (endpoint := _endpoint(snapshot, row, node, draining=draining)) is not None:
            found[row.replica_id] = (row, node, model, endpoint)
    snapshot.found["endpoints"] = found
    return [endpoint for _, _, _, endpoint in found.values()]


def _endpoint(snapshot: Snapshot, row: ReplicaRow, node: NodeRow, *, draining: bool) -> Endpoint | None:
    """`draining` follows from the row's phase: what does not serve has none at all."""
    url = endpoint_url(snapshot, row)
    if url is None:
        return None
    head = min(row.shards, key=lambda shard: shard.rank)
    model = snapshot.catalog.models.get(row.model)
    # As the catalog says now, also of a replica of the spec before: no engine is started from it.
    profile = None if model is None else model.profile(row.profile)
    return Endpoint(
        endpoint_id=row.endpoint_id,
        replica_id=row.replica_id,
        group_epoch=row.group_epoch,
        model=row.model,
        url=url,
        pool=node.pool or "",
        weight=1,
        node_id=head.node_id,
        draining=draining,
        credential=row.credential,
        concurrency=None if profile is None else profile.concurrency,
    )


def _model(snapshot: Snapshot, model: Model, now: float) -> CatalogModel:
    state = model_state(snapshot, model, now)
    eta_s = None if state.eta_s is None else ceil(state.eta_s / ETA_STEP_S) * ETA_STEP_S
    return CatalogModel(
        model=model.name,
        aliases=model.aliases,
        availability=state.availability,
        reason=state.reason,
        activatable=model.activate_on_demand,
        hold_timeout_s=model.hold_timeout_s,
        max_held=model.max_held,
        eta_s=eta_s,
        created=None if (at := created_at(snapshot.stored, model)) is None else int(at),
        max_held_per_tenant=model.max_held_per_tenant,
    )
