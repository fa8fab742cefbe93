"""What routers are told: core types to llmgw.v1.routing, in this one place."""

from dataclasses import replace

from llmgw.v1 import routing_pb2 as pb
from llmgw_controller.core.activation import Decision, Pending, Ready, Refused
from llmgw_controller.core.availability import Availability
from llmgw_controller.core.routes import CatalogModel, Endpoint, FleetSummary, RouteDelta, RouteTable
from llmgw_controller.wire_rows import Untold, each

AVAILABILITY_TO_WIRE = {
    Availability.READY: pb.MODEL_AVAILABILITY_READY,
    Availability.STARTING: pb.MODEL_AVAILABILITY_STARTING,
    Availability.COLD: pb.MODEL_AVAILABILITY_COLD,
    Availability.UNAVAILABLE: pb.MODEL_AVAILABILITY_UNAVAILABLE,
}


def endpoint(row: Endpoint) -> pb.Endpoint:
    """One endpoint."""
    return pb.Endpoint(
        endpoint_id=row.endpoint_id,
        replica_id=row.replica_id,
        group_epoch=row.group_epoch,
        model=row.model,
        url=row.url,
        pool=row.pool,
        weight=row.weight,
        node_id=row.node_id,
        draining=row.draining,
        credential=row.credential,
        max_concurrency=row.concurrency,
    )


def catalog_model(row: CatalogModel) -> pb.CatalogModel:
    """One model of the catalog."""
    return pb.CatalogModel(
        model=row.model,
        aliases=list(row.aliases),
        availability=AVAILABILITY_TO_WIRE[row.availability],
        activatable=row.activatable,
        hold_timeout_s=row.hold_timeout_s,
        max_held=row.max_held,
        reason=row.reason,
        eta_s=row.eta_s,
        created=row.created,
        max_held_per_tenant=row.max_held_per_tenant,
    )


def fleet(row: FleetSummary) -> pb.FleetSummary:
    """The few numbers of M9."""
    return pb.FleetSummary(
        classes=[
            pb.FleetClass(
                gpu_class=one.gpu_class,
                total=one.total,
                free=one.free,
                unhealthy=one.unhealthy,
                claimed=one.claimed,
                foreign=one.foreign,
                cordoned=one.cordoned,
            )
            for one in row.classes
        ],
        replicas_ready=row.replicas_ready,
        replicas_wanted=row.replicas_wanted,
        models_unplaceable=row.models_unplaceable,
        nodes_heard=row.nodes_heard,
        nodes_silent=row.nodes_silent,
        nodes_lost=row.nodes_lost,
        fabrics=[
            pb.FleetFabric(fabric=one.fabric, nodes=one.nodes, whole_free=one.whole_free)
            for one in row.fabrics
        ],
        models=pb.FleetModels(**{state.value: count for state, count in row.models}),
    )


def snapshot(table: RouteTable) -> pb.RouteSnapshot:
    """The whole table."""
    return pb.RouteSnapshot(
        endpoints=[endpoint(row) for _, row in sorted(table.endpoints.items())],
        models=[catalog_model(row) for _, row in sorted(table.models.items())],
        fleet=fleet(table.fleet),
    )


def tellable(table: RouteTable, before: RouteTable | None) -> tuple[RouteTable, tuple[Untold, ...]]:
    """The table without what no message carries: one such row must not end the leader's term, and with it the
    routes of all others. What stood in the table before has been told."""
    known_endpoints = before.endpoints if before is not None else {}
    known_models = before.models if before is not None else {}
    _, bad_endpoints = each(
        (row for key, row in table.endpoints.items() if known_endpoints.get(key) != row),
        endpoint,
        lambda row: f"endpoint {row.endpoint_id}",
    )
    _, bad_models = each(
        (row for name, row in table.models.items() if known_models.get(name) != row),
        catalog_model,
        lambda row: f"model {row.model}",
    )
    if not bad_endpoints and not bad_models:
        return table, ()
    left_out = {one.subject for one in (*bad_endpoints, *bad_models)}
    return replace(
        table,
        endpoints={key: row for key, row in table.endpoints.items() if f"endpoint {key}" not in left_out},
        models={name: row for name, row in table.models.items() if f"model {name}" not in left_out},
    ), (*bad_endpoints, *bad_models)


def delta(row: RouteDelta) -> pb.RouteDelta:
    """What changed since the version before."""
    return pb.RouteDelta(
        upsert_endpoints=[endpoint(one) for one in row.upsert_endpoints],
        remove_endpoint_ids=list(row.remove_endpoint_ids),
        upsert_models=[catalog_model(one) for one in row.upsert_models],
        remove_model_ids=list(row.remove_model_ids),
        fleet=fleet(row.fleet),
    )


def activation(decision: Decision, *, term: int, routes_version: int) -> pb.ActivateResponse:
    """What becomes of a held request."""
    message = pb.ActivateResponse(term=term)
    match decision:
        case Ready():
            message.ready.routes_version = routes_version
        case Pending(phase, progress, eta_s):
            message.phase.phase = phase
            # Steps that people notice; a finer one would be a message at every pass.
            if progress is not None:
                message.phase.progress = round(progress, 2)
            if eta_s is not None:
                message.phase.eta_s = round(eta_s)
        case Refused(code, text, retry_after_s):
            message.refused.code = code
            message.refused.text = text
            if retry_after_s is not None:
                message.refused.retry_after_s = retry_after_s
    return message
