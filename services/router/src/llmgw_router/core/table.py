"""The routing table: what is configured, and where it answers. One immutable snapshot at a time.

Rows are what the supervisor sends; core/table_index.py makes targets of them, and a request keeps
the target it began with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec


class Availability(Enum):
    """What the catalog says of a model; an endpoint in the table beats every one of these."""

    READY = "ready"
    STARTING = "starting"
    COLD = "cold"
    #: Wanted but cannot run now; `ModelRow.reason` says why.
    UNAVAILABLE = "unavailable"


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where one ready replica answers. `endpoint_id` is replica id "@" group epoch."""

    endpoint_id: str
    replica_id: str
    group_epoch: int
    model: str
    #: Further models it answers to under their own names (a static endpoint may serve several).
    also_models: tuple[str, ...] = ()
    host: str
    port: int
    #: Prefix of every path asked there: "" or "/something", without a trailing slash.
    base_path: str = ""
    tls: bool = False
    #: File of the authorities of this one endpoint. None: those of all (see config.UpstreamTls).
    tls_ca: str | None = None
    #: What its certificate must be made out to. None: its host.
    tls_name: str | None = None
    pool: str = "static"
    #: Share of the load relative to others of the model; at least 1.
    weight: int = 1
    #: Requests go to the smallest tier that has a usable endpoint.
    tier: int = 0
    #: Takes no new requests; what runs is finished.
    draining: bool = False
    #: Sent as `Authorization: Bearer`; never logged, never shown.
    credential: str | None = None
    #: Requests that it runs at once before others wait in the engine. None: unknown.
    concurrency: int | None = None
    #: Column in the slots. None until the supervisor's WorkerPool assigned one: callers leave it out.
    slot: int | None = None

    def __repr__(self) -> str:
        state = " draining" if self.draining else ""
        return f"<endpoint {self.endpoint_id} {self.model} {self.host}:{self.port}{self.base_path}{state}>"


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One configured model, up or not."""

    name: str
    aliases: tuple[str, ...] = ()
    availability: Availability = Availability.READY
    reason: str | None = None
    #: A request may start it.
    activatable: bool = False
    #: How long a request may be held, and how many, in this whole router (the workers share the number).
    hold_timeout_s: float = 0.0
    max_held: int = 0
    #: Of these, how many of one tenant. None: any number.
    max_held_per_tenant: int | None = None
    #: Until ready, from measured loads. None: nothing was measured.
    eta_s: float | None = None
    #: What a refused client is told; None: derived from eta_s.
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a name in a request stands for: a model, and the ids of where it may be sent now."""

    model: ModelRow
    endpoint_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`by_name` holds model names and aliases alike."""

    by_name: Mapping[str, Target]
    endpoints: Mapping[str, EndpointRow]


EMPTY = Table({}, {})


class Waiting(Enum):
    """What may be done with a request whose model has no routable endpoint."""

    HOLD = "hold"
    #: Nothing could bring the model up while the request waits.
    REFUSE = "refuse"


def while_cold(model: ModelRow) -> Waiting:
    """Hold only what can be expected to come up: a model being started, or one a request may start."""
    if model.hold_timeout_s <= 0 or model.max_held <= 0:
        return Waiting.REFUSE
    match model.availability:
        case Availability.UNAVAILABLE:
            return Waiting.REFUSE
        case Availability.STARTING:
            return Waiting.HOLD
        case Availability.COLD | Availability.READY:
            # READY without an endpoint: its group is just restarting, or was drained a moment ago.
            return Waiting.HOLD if model.activatable else Waiting.REFUSE
