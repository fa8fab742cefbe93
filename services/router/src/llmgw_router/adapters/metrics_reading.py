"""Everything that one scrape shows, taken on the loop at one moment and rendered elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass

from llmgw_router.core.learned import Routes
from llmgw_router.core.ledger import Count
from llmgw_router.keys import KeysView
from llmgw_router.relay.ipc import ModelCount
from llmgw_router.supervisor.workers import WorkerView
from llmgw_router.usage import UsageView


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything a scrape shows, taken at one moment."""

    totals: Mapping[str, int]
    by_model: Mapping[str, Count]
    in_flight: Mapping[str, int]
    held: Mapping[str, int]
    workers: tuple[WorkerView, ...]
    routes: Routes
    source: str | None
    heard_age_s: float | None
    following: bool | None
    activity_failures: int | None
    activity_age_s: float | None
    model_counts: Mapping[str, ModelCount]
    access_dropped: int
    #: Exported and dropped; None: tracing was never on.
    spans: tuple[int, int] | None
    #: Succeeded and failed. None: nobody reloads here.
    reloads: tuple[int, int] | None
    config_refused: bool
    config_loaded_unix_s: float
    #: None: no mirror is configured, or nobody has looked yet.
    mirror_reachable: bool | None = None
    #: None: no database has keys for this router.
    keys: KeysView | None = None
    #: Whether anybody notes what requests use.
    usage_noted: bool = False
    #: None: nobody takes usage records.
    usage: UsageView | None = None
