"""routing.proto <-> the router's own types, in one place.

A message that cannot be meant raises BadRoutes: the session ends and another controller is asked.
"""

from urllib.parse import urlsplit

from llmgw.v1 import routing_pb2 as pb
from llmgw_router.core.header_texts import NO_CREDENTIAL, is_credential
from llmgw_router.core.learned import CatalogEntry, Delta, Fleet, FleetClass, FleetFabric, Snapshot
from llmgw_router.core.table import Availability, EndpointRow, ModelRow

_AVAILABILITY = {
    pb.MODEL_AVAILABILITY_READY: Availability.READY,
    pb.MODEL_AVAILABILITY_STARTING: Availability.STARTING,
    pb.MODEL_AVAILABILITY_COLD: Availability.COLD,
    pb.MODEL_AVAILABILITY_UNAVAILABLE: Availability.UNAVAILABLE,
}


class BadRoutes(Exception):
    """The controller sent what this router cannot read; says which field."""


def endpoint_row(message: pb.Endpoint) -> EndpointRow:
    """One endpoint. Raises BadRoutes."""
    for name in ("endpoint_id", "replica_id", "model", "url"):
        if not getattr(message, name):
            raise BadRoutes(f"endpoint {message.endpoint_id!r} has no {name}")
    try:
        url = urlsplit(message.url)
        port = url.port
    except ValueError:
        raise BadRoutes(f"endpoint {message.endpoint_id} has URL {message.url!r}") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise BadRoutes(f"endpoint {message.endpoint_id} has URL {message.url!r}")
    if message.HasField("credential") and not is_credential(message.credential):
        raise BadRoutes(f"endpoint {message.endpoint_id} has {NO_CREDENTIAL}")
    return EndpointRow(
        endpoint_id=message.endpoint_id,
        replica_id=message.replica_id,
        group_epoch=message.group_epoch,
        model=message.model,
        host=url.hostname,
        port=port or (443 if url.scheme == "https" else 80),
        base_path=url.path.rstrip("/"),
        tls=url.scheme == "https",
        pool=message.pool,
        # proto3's 0 is "not said": every endpoint takes at least its share.
        weight=max(1, message.weight),
        draining=message.draining,
        credential=message.credential if message.HasField("credential") else None,
        # An engine that runs nothing at once is not meant: 0 says as little as absence.
        concurrency=message.max_concurrency or None,
    )


def catalog_entry(message: pb.CatalogModel) -> CatalogEntry:
    """One model of the catalog. Raises BadRoutes."""
    if not message.model:
        raise BadRoutes("a catalog model has no name")
    if message.availability == pb.MODEL_AVAILABILITY_UNSPECIFIED:
        raise BadRoutes(f"model {message.model} has no availability")
    # A word of a newer controller: this router cannot act on it, and says so to who asks for the model.
    availability = _AVAILABILITY.get(message.availability)
    reason = message.reason if message.HasField("reason") else None
    if availability is None:
        availability = Availability.UNAVAILABLE
        reason = f"state {message.availability} is unknown to this version of the router"
    return CatalogEntry(
        row=ModelRow(
            name=message.model,
            aliases=tuple(message.aliases),
            availability=availability,
            reason=reason,
            activatable=message.activatable,
            hold_timeout_s=message.hold_timeout_s,
            max_held=message.max_held,
            max_held_per_tenant=message.max_held_per_tenant
            if message.HasField("max_held_per_tenant")
            else None,
            eta_s=message.eta_s if message.HasField("eta_s") else None,
        ),
        created=message.created if message.HasField("created") else None,
    )


def fleet(message: pb.FleetSummary) -> Fleet:
    """What an older controller does not say stays unknown: it always says something of the models."""
    whole = message.HasField("models")
    states = ("ready", "starting", "cold", "unavailable")
    return Fleet(
        classes=tuple(
            FleetClass(
                gpu_class=row.gpu_class,
                total=row.total,
                free=row.free,
                unhealthy=row.unhealthy,
                claimed=row.claimed if whole else None,
                foreign=row.foreign if whole else None,
                cordoned=row.cordoned if whole else None,
            )
            for row in message.classes
        ),
        replicas_ready=message.replicas_ready,
        replicas_wanted=message.replicas_wanted,
        models_unplaceable=message.models_unplaceable,
        nodes={
            "heard": message.nodes_heard,
            "silent": message.nodes_silent,
            "lost": message.nodes_lost,
        }
        if whole
        else None,
        models={state: getattr(message.models, state) for state in states} if whole else None,
        fabrics=tuple(
            FleetFabric(fabric=row.fabric, nodes=row.nodes, whole_free=row.whole_free)
            for row in message.fabrics
        ),
    )


def routes_message(message: pb.WatchRoutesResponse) -> Snapshot | Delta:
    """A snapshot or a delta; `move_on` is the session's own business. Raises BadRoutes."""
    match message.WhichOneof("body"):
        case "snapshot":
            snapshot = message.snapshot
            return Snapshot(
                term=message.term,
                version=message.version,
                endpoints=tuple(endpoint_row(row) for row in snapshot.endpoints),
                models=tuple(catalog_entry(row) for row in snapshot.models),
                fleet=fleet(snapshot.fleet) if snapshot.HasField("fleet") else None,
            )
        case "delta":
            delta = message.delta
            return Delta(
                term=message.term,
                version=message.version,
                upsert_endpoints=tuple(endpoint_row(row) for row in delta.upsert_endpoints),
                remove_endpoints=frozenset(delta.remove_endpoint_ids),
                upsert_models=tuple(catalog_entry(row) for row in delta.upsert_models),
                remove_models=frozenset(delta.remove_model_ids),
                fleet=fleet(delta.fleet) if delta.HasField("fleet") else None,
            )
        case other:
            raise BadRoutes(f"WatchRoutes sent {other or 'an empty message'}")
