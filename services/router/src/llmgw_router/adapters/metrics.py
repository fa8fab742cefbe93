"""The router's metrics: sums of what workers wrote into the slots, and the fleet as the leader told it (M9).

Read on the loop by `refresh`, rendered elsewhere. Labels are closed sets: configured models, codes of
ours, classes of status; never a key, a user or a path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from llmgw_router.activity import ActivityLoop
from llmgw_router.board import Board
from llmgw_router.core.errors import CODES
from llmgw_router.core.learned import Routes
from llmgw_router.core.ledger import Count, Ledger
from llmgw_router.leader import LeaderFollower
from llmgw_router.relay.slots import DURATION_BUCKETS_MS, TTFT_BUCKETS_MS
from llmgw_router.supervisor.workers import WorkerPool, WorkerView

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_CLASSES = {
    "2xx": "answers_2xx",
    "3xx": "answers_3xx",
    "4xx": "answers_4xx",
    "5xx": "answers_5xx",
    "client_gone": "client_gone",
}
_COUNTERS = (
    ("streams", "llmgw_router_streams", "Answers that were event streams."),
    ("streams_broken", "llmgw_router_streams_broken", "Streams ended by an error event of the router's."),
    ("cold_requests", "llmgw_router_cold_requests", "Requests that went to no engine."),
    ("bytes_from_clients", "llmgw_router_received_bytes", "Bytes read from clients."),
    ("bytes_to_clients", "llmgw_router_sent_bytes", "Bytes written to clients."),
    ("connections_accepted", "llmgw_router_connections", "Client connections accepted."),
    ("upstream_connects", "llmgw_router_upstream_connects", "Connections opened to engines."),
    ("log_lines_dropped", "llmgw_router_log_lines_dropped", "Log lines of relay workers that were dropped."),
)


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


@dataclass(eq=False)
class RouterMetrics(Collector):
    """A collector over the pool and the board. `refresh` on the loop before every `collect`."""

    pool: WorkerPool
    board: Board
    monotonic_s: Callable[[], float]
    follower: LeaderFollower | None = None
    activity: ActivityLoop | None = None
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
        activity = self.activity
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
            yield from _traffic(self._reading)
            yield from _control(self._reading)
            yield from _fleet(self._reading)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family


def _histogram(
    totals: Mapping[str, int], name: str, text: str, prefix: str, bounds: tuple[int, ...]
) -> HistogramMetricFamily:
    cumulated, buckets = 0, []
    for bound in bounds:
        cumulated += totals[f"{prefix}_le_{bound}"]
        buckets.append((str(bound / 1000), float(cumulated)))
    cumulated += totals[f"{prefix}_le_inf"]
    buckets.append(("+Inf", float(cumulated)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=totals[f"{prefix}_sum_us"] / 1e6)


def _traffic(at: Reading) -> Iterator[Family]:
    totals = at.totals
    yield _counter(
        "llmgw_router_requests",
        "Finished requests by class of status; client_gone: the client left first (499).",
        "code_class",
        {label: totals[name] for label, name in _CLASSES.items()},
    )
    yield _counter(
        "llmgw_router_refusals",
        "Requests the router answered, or streams it ended, with an error of its own.",
        "code",
        {code: totals[f"refused_{code}"] for code in CODES},
    )
    yield _counter(
        "llmgw_router_model_picks",
        "Requests handed to an endpoint of the model, repeated ones counted again.",
        "model",
        {model: count.picks for model, count in at.by_model.items()},
    )
    yield _counter(
        "llmgw_router_model_upstream_failures",
        "Endpoint failed before the first byte of its answer.",
        "model",
        {model: count.failed for model, count in at.by_model.items()},
    )
    yield _counter(
        "llmgw_router_model_upstream_breaks",
        "Endpoint broke off in the middle of its answer.",
        "model",
        {model: count.broken for model, count in at.by_model.items()},
    )
    yield _gauge("llmgw_router_in_flight", "Requests at engines now.", "model", at.in_flight)
    yield _gauge("llmgw_router_held", "Requests held until their model is up.", "model", at.held)
    yield _counter(
        "llmgw_router_retries",
        "Asked again: stale: the pooled connection was closed by the engine; other: at another endpoint.",
        "kind",
        {"stale": totals["retries_stale"], "other": totals["retries_other"]},
    )
    for key, name, text in _COUNTERS:
        yield CounterMetricFamily(name, text, value=totals[key])
    yield GaugeMetricFamily(
        "llmgw_router_requests_running", "Requests in the relay now.", value=totals["requests_running"]
    )
    yield GaugeMetricFamily(
        "llmgw_router_connections_open", "Client connections open now.", value=totals["connections_open"]
    )
    yield _histogram(
        totals,
        "llmgw_router_time_to_first_byte_seconds",
        "From a whole request to the first byte of the engine's body.",
        "ttft",
        TTFT_BUCKETS_MS,
    )
    yield _histogram(
        totals,
        "llmgw_router_request_duration_seconds",
        "From a whole request to the last byte of the answer.",
        "duration",
        DURATION_BUCKETS_MS,
    )


def _control(at: Reading) -> Iterator[Family]:
    serving = sum(worker.serving for worker in at.workers)
    yield _gauge(
        "llmgw_router_relay_workers",
        "Relay worker processes.",
        "state",
        {"serving": serving, "down": len(at.workers) - serving},
    )
    yield CounterMetricFamily(
        "llmgw_router_relay_worker_deaths",
        "Relay workers that ended by themselves.",
        value=sum(worker.deaths for worker in at.workers),
    )
    if at.source is not None:
        yield _gauge(
            "llmgw_router_routes_source", "1 for where the routes came from.", "source", {at.source: 1}
        )
        yield GaugeMetricFamily(
            "llmgw_router_endpoints", "Endpoints in the table.", value=len(at.routes.endpoints)
        )
    if at.routes.term is not None and at.routes.version is not None:
        yield GaugeMetricFamily("llmgw_router_routes_term", "Lease term of the routes.", value=at.routes.term)
        yield GaugeMetricFamily(
            "llmgw_router_routes_version", "Version of the routes.", value=at.routes.version
        )
    if at.heard_age_s is not None:
        yield GaugeMetricFamily(
            "llmgw_router_routes_age_seconds", "Since a controller last sent routes.", value=at.heard_age_s
        )
    if at.following is not None:
        yield GaugeMetricFamily(
            "llmgw_router_controller_followed", "1 while a leader's route stream is open.", value=at.following
        )
    if at.activity_failures is not None:
        yield CounterMetricFamily(
            "llmgw_router_activity_failures",
            "Activity maps that Redis did not take.",
            value=at.activity_failures,
        )
    if at.activity_age_s is not None:
        yield GaugeMetricFamily(
            "llmgw_router_activity_age_seconds", "Since Redis last took the map.", value=at.activity_age_s
        )


def _fleet(at: Reading) -> Iterator[Family]:
    fleet = at.routes.fleet
    if fleet is None or at.heard_age_s is None:
        # No leader has told: the series are absent, not zero.
        return
    gpus = GaugeMetricFamily(
        "llmgw_fleet_gpus",
        "GPUs of the fleet, as the leader counts them; the states but total add up to total.",
        labels=["gpu_class", "state"],
    )
    for row in fleet.classes:
        for state in ("total", "free", "unhealthy", "claimed", "foreign", "cordoned"):
            count = getattr(row, state)
            if count is not None:
                gpus.add_metric([row.gpu_class, state], count)
    yield gpus
    yield _gauge(
        "llmgw_fleet_replicas",
        "Replicas of the fleet.",
        "state",
        {"ready": fleet.replicas_ready, "wanted": fleet.replicas_wanted},
    )
    yield GaugeMetricFamily(
        "llmgw_fleet_models_unplaceable", "Models that fit nowhere now.", value=fleet.models_unplaceable
    )
    if fleet.nodes is not None:
        yield _gauge("llmgw_fleet_nodes", "Nodes of the fleet.", "state", fleet.nodes)
    if fleet.models is not None:
        yield _gauge("llmgw_fleet_models", "Models of the catalog.", "state", fleet.models)
    if fleet.fabrics:
        yield _gauge(
            "llmgw_fleet_whole_nodes_free",
            "Nodes of a fabric all of whose GPUs are free; fabric none: nodes on none.",
            "fabric",
            {row.fabric or "none": row.whole_free for row in fleet.fabrics},
        )
    yield GaugeMetricFamily(
        "llmgw_fleet_snapshot_age_seconds", "Age of the figures above.", value=at.heard_age_s
    )
