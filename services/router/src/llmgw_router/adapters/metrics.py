"""The router's metrics: sums of what workers wrote into the slots, and the fleet as the leader told it (M9).

Read on the loop by `refresh`, rendered elsewhere. Labels are closed sets: configured models, codes of
ours, classes of status; never a key, a user or a path. docs/metrics.md lists every name, and a test
holds the page and the scrape against each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.registry import Collector

from llmgw_router.activity import ActivityLoop
from llmgw_router.adapters.access_log import AccessLog
from llmgw_router.adapters.metrics_families import Family
from llmgw_router.adapters.metrics_keys import of_keys
from llmgw_router.adapters.metrics_process import of_fleet, of_process
from llmgw_router.adapters.metrics_reading import Reading
from llmgw_router.adapters.metrics_traffic import of_traffic
from llmgw_router.adapters.tracing import OtlpExporter
from llmgw_router.board import Board
from llmgw_router.core.ledger import Count, Ledger
from llmgw_router.keys import KeysLoop
from llmgw_router.leader import LeaderFollower
from llmgw_router.reload import Reloader
from llmgw_router.supervisor.workers import WorkerPool
from llmgw_router.usage import UsageLoop


@dataclass(eq=False)
class RouterMetrics(Collector):
    """A collector over the pool and the board. `refresh` on the loop before every `collect`."""

    pool: WorkerPool
    board: Board
    monotonic_s: Callable[[], float]
    follower: LeaderFollower | None = None
    activity: ActivityLoop | None = None
    reloader: Reloader | None = None
    access_log: AccessLog | None = None
    exporter: OtlpExporter | None = None
    keys: KeysLoop | None = None
    usage: UsageLoop | None = None
    _ledger: Ledger = field(default_factory=Ledger)
    _reading: Reading | None = None

    def refresh(self) -> None:
        """Read loop-owned state. Also called now and then between scrapes, so that endpoints which come and
        go are not missed."""
        seen = self.pool.activity()
        labels = [(",".join((row.model, *row.also_models)), row.endpoint_id, at) for row, at in seen]
        self._ledger.read(
            (model, endpoint_id, Count(at.picks, at.failed, at.broken)) for model, endpoint_id, at in labels
        )
        # 0 when idle, never absent: an autoscaler must not take "no series" for "no news".
        in_flight = dict.fromkeys(self.board.routes.models, 0) if self.follower is not None else {}
        for model, _, at in labels:
            in_flight[model] = in_flight.get(model, 0) + at.in_flight
        activity, reloader = self.activity, self.reloader
        self._reading = Reading(
            totals=self.pool.totals(),
            by_model=self._ledger.totals(),
            in_flight=dict(sorted(in_flight.items())),
            held=self._closed(self.pool.held),
            workers=tuple(self.pool.workers),
            routes=self.board.routes,
            source=self.board.source.value if self.board.source else None,
            heard_age_s=self.board.heard_age_s,
            following=None if self.follower is None else self.follower.leader is not None,
            activity_failures=None if activity is None else activity.failures,
            activity_age_s=None
            if activity is None or activity.arrived_s is None
            else self.monotonic_s() - activity.arrived_s,
            model_counts=self.pool.models.totals(),
            access_dropped=0 if self.access_log is None else self.access_log.dropped,
            spans=None if self.exporter is None else (self.exporter.exported, self.exporter.dropped),
            reloads=None if reloader is None else (reloader.succeeded, reloader.failed),
            config_refused=reloader is not None and reloader.last is not None and not reloader.last.fine,
            config_loaded_unix_s=0.0 if reloader is None else reloader.loaded_at_unix_s,
            keys=None if self.keys is None else self.keys.view,
            usage=None if self.usage is None else self.usage.view,
        )

    def _closed(self, counts: Mapping[str, int]) -> dict[str, int]:
        known = dict.fromkeys(self.board.routes.models, 0)
        for model, count in counts.items():
            name = model if model in known else "other"
            known[name] = known.get(name, 0) + count
        return known

    def describe(self) -> Iterable[Family]:
        """Nothing: names are not known before the first reading."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Families of the last reading; none before the first."""
        if self._reading is not None:
            yield from of_traffic(self._reading)
            yield from of_process(self._reading)
            yield from of_fleet(self._reading)
            yield from of_keys(self._reading)
