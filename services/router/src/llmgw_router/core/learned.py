"""What the leading controller says of endpoints and models, and how one word follows another.

Pure and immutable: `follow` takes the routes known and one message, and gives the next routes or
says why it cannot. Nothing here ever forgets an endpoint because a controller is silent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llmgw_router.core.table import EndpointRow, ModelRow


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """One configured model: what workers need, and what only `/v1/models` shows."""

    row: ModelRow
    #: Unix seconds of its first appearance in the catalog; None: the controller did not say.
    created: int | None = None


@dataclass(frozen=True, kw_only=True)
class FleetClass:
    """GPUs of one class, as the leader counts them."""

    gpu_class: str
    total: int
    free: int
    unhealthy: int
    #: None, as all that follows: an older controller does not say.
    claimed: int | None = None
    foreign: int | None = None
    cordoned: int | None = None


@dataclass(frozen=True, kw_only=True)
class FleetFabric:
    """`fabric` is "" for nodes on none."""

    fabric: str
    nodes: int
    whole_free: int


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The few numbers of M9."""

    classes: tuple[FleetClass, ...] = ()
    replicas_ready: int
    replicas_wanted: int
    models_unplaceable: int
    #: By state.
    nodes: dict[str, int] | None = None
    models: dict[str, int] | None = None
    fabrics: tuple[FleetFabric, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Routes:
    """Everything known at one (term, version). Both are None for a static table."""

    term: int | None = None
    version: int | None = None
    endpoints: Mapping[str, EndpointRow] = field(default_factory=dict)
    models: Mapping[str, CatalogEntry] = field(default_factory=dict)
    #: None: no leader has told yet.
    fleet: Fleet | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Replaces everything."""

    term: int
    version: int
    endpoints: tuple[EndpointRow, ...]
    models: tuple[CatalogEntry, ...]
    fleet: Fleet | None = None


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Changes from the version before it."""

    term: int
    version: int
    upsert_endpoints: tuple[EndpointRow, ...] = ()
    remove_endpoints: frozenset[str] = frozenset()
    upsert_models: tuple[CatalogEntry, ...] = ()
    remove_models: frozenset[str] = frozenset()
    #: None: unchanged.
    fleet: Fleet | None = None


class StaleTerm(Exception):
    """The sender lost its lease: nothing it says may be believed."""


class Gap(Exception):
    """A delta that does not follow what is known: only a snapshot helps."""


def follow(known: Routes, message: Snapshot | Delta) -> Routes:
    """The next routes. Raises StaleTerm or Gap; then `known` stands.

    A snapshot of the known term may carry a lower version: a controller without a store counts
    anew after a restart, and a snapshot needs nothing before it."""
    if known.term is not None and message.term < known.term:
        raise StaleTerm(f"term {message.term} is over: term {known.term} was seen")
    if isinstance(message, Snapshot):
        return Routes(
            term=message.term,
            version=message.version,
            endpoints={row.endpoint_id: row for row in message.endpoints},
            models={entry.row.name: entry for entry in message.models},
            fleet=message.fleet or known.fleet,
        )
    if message.term != known.term or known.version is None or message.version != known.version + 1:
        raise Gap(
            f"change to ({message.term}, {message.version}) does not follow ({known.term}, {known.version})"
        )
    endpoints = {key: row for key, row in known.endpoints.items() if key not in message.remove_endpoints}
    endpoints.update((row.endpoint_id, row) for row in message.upsert_endpoints)
    models = {key: entry for key, entry in known.models.items() if key not in message.remove_models}
    models.update((entry.row.name, entry) for entry in message.upsert_models)
    return replace(
        known,
        version=message.version,
        endpoints=endpoints,
        models=models,
        fleet=message.fleet or known.fleet,
    )


def same_table(one: Routes, other: Routes) -> bool:
    """Whether requests would be routed alike, under one leader: version and fleet aside."""
    return (one.term, one.endpoints, one.models) == (other.term, other.endpoints, other.models)


def only_alive(kept: Routes, alive: frozenset[str]) -> Routes:
    """Routes from disk, without the endpoints that did not answer a probe."""
    return replace(kept, endpoints={key: row for key, row in kept.endpoints.items() if key in alive})
