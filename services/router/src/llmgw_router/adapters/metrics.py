"""The router's metrics: sums of what workers wrote into the slots, and the fleet as the leader told it (M9).

Read on the loop by `refresh`, rendered elsewhere. Labels are closed sets: configured models, codes of
ours, classes of status; never a key, a user or a path. docs/metrics.md lists every name, and a test
holds the page and the scrape against each other.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.registry import Collector

from llmgw_router.adapters.metrics_families import Family
from llmgw_router.adapters.metrics_keys import of_keys
from llmgw_router.adapters.metrics_process import of_fleet, of_process
from llmgw_router.adapters.metrics_reading import Reading
from llmgw_router.adapters.metrics_traffic import of_traffic
from llmgw_router.core.ledger import Count, Ledger
from llmgw_router.reload import Reloader
from llmgw_router.router import Router


@dataclass(eq=False)
class RouterMetrics(Collector):
    """A collector over a router's parts, as far as they are there. `refresh` on the loop before every
    `collect`."""

    router: Router
    reloader: Reloader
    _ledger: Ledger = field(default_factory=Ledger)
    _reading: Reading | None = None

    def refresh(self) -> None:
        """Read loop-owned state. Also called now and then between scrapes, so that endpoints which come and
        go are not missed."""
        router, reloader = self.router, self.reloader
        pool, board = router.pool, router.board
        seen = pool.activity()
        labels = [(",".join((row.model, *row.also_models)), row.endpoint_id, at) for row, at in seen]
        self._ledger.read(
            (model, endpoint_id, Count(at.picks, at.failed, at.broken)) for model, endpoint_id, at in labels
        )
        # 0 when idle, never absent: an autoscaler must not take "no series" for "no news".
        in_flight = dict.fromkeys(board.routes.models, 0) if router.follower is not None else {}
        for model, _, at in labels:
            in_flight[model] = in_flight.get(model, 0) + at.in_flight
        activity, exporter = router.activity, router.spans
        self._reading = Reading(
            totals=pool.totals(),
            by_model=self._ledger.totals(),
            in_flight=dict(sorted(in_flight.items())),
            held=self._closed(pool.held),
            workers=tuple(pool.workers),
            routes=board.routes,
            source=board.source.value if board.source else None,
            heard_age_s=board.heard_age_s,
            following=None if router.follower is None else router.follower.leader is not None,
            activity_failures=None if activity is None else activity.failures,
            activity_age_s=None
            if activity is None or activity.arrived_s is None
            else router.clock.monotonic_s() - activity.arrived_s,
            model_counts=pool.models.totals(),
            mirror_reachable=None if router.mirror is None else router.mirror.reachable,
            access_dropped=router.access_log.dropped,
            spans=None if exporter is None else (exporter.exported, exporter.dropped),
            reloads=(reloader.succeeded, reloader.failed),
            config_refused=reloader.last is not None and not reloader.last.fine,
            config_loaded_unix_s=reloader.loaded_at_unix_s,
            keys=None if router.keys is None else router.keys.view,
            usage_noted=router.settings.usage_noted != "off",
            usage=None if router.usage is None else router.usage.view,
        )

    def _closed(self, counts: Mapping[str, int]) -> dict[str, int]:
        known = dict.fromkeys(self.router.board.routes.models, 0)
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
