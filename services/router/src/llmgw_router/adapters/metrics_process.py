"""Metrics of this process and its workers, of whom it follows, and of the fleet as its leader says (M9)."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from llmgw_router.adapters.metrics_families import Family, counter, gauge
from llmgw_router.adapters.metrics_reading import Reading


def of_process(at: Reading) -> Iterator[Family]:
    serving = sum(worker.serving for worker in at.workers)
    yield gauge(
        "llmgw_router_relay_workers",
        "Relay worker processes.",
        "state",
        {"serving": serving, "down": len(at.workers) - serving},
    )
    yield CounterMetricFamily(
        "llmgw_router_relay_worker_deaths",
        "Relay workers that ended without being told to.",
        value=sum(worker.deaths for worker in at.workers),
    )
    yield CounterMetricFamily(
        "llmgw_router_relay_worker_hangs",
        "Of these, ended by the supervisor because their loop stood still.",
        value=sum(worker.hangs for worker in at.workers),
    )
    yield gauge(
        "llmgw_router_relay_worker_loop_lag_seconds",
        "How late the last sweep of each relay worker was.",
        "worker",
        {str(worker.worker): worker.lag_s for worker in at.workers if worker.lag_s is not None},
    )
    yield from _operating(at)
    if at.source is not None:
        yield gauge(
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
    if at.mirror_reachable is not None:
        yield GaugeMetricFamily(
            "llmgw_router_mirror_reachable", "1 while the mirror's gRPC answers.", value=at.mirror_reachable
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


def _operating(at: Reading) -> Iterator[Family]:
    yield CounterMetricFamily(
        "llmgw_router_access_log_dropped", "Lines of the access log that were lost.", value=at.access_dropped
    )
    if at.spans is not None:
        yield counter(
            "llmgw_router_spans",
            "Spans by what became of them.",
            "result",
            {"exported": at.spans[0], "dropped": at.spans[1]},
        )
    if at.reloads is not None:
        yield counter(
            "llmgw_router_config_reloads",
            "Reloads of the settings.",
            "result",
            {"success": at.reloads[0], "failure": at.reloads[1]},
        )
        yield GaugeMetricFamily(
            "llmgw_router_config_refused",
            "1 while the newest settings could not be used and older ones are in force.",
            value=at.config_refused,
        )
        yield GaugeMetricFamily(
            "llmgw_router_config_loaded_timestamp_seconds",
            "When the settings in force were read.",
            value=at.config_loaded_unix_s,
        )


def of_fleet(at: Reading) -> Iterator[Family]:
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
    yield gauge(
        "llmgw_fleet_replicas",
        "Replicas of the fleet.",
        "state",
        {"ready": fleet.replicas_ready, "wanted": fleet.replicas_wanted},
    )
    yield GaugeMetricFamily(
        "llmgw_fleet_models_unplaceable", "Models that fit nowhere now.", value=fleet.models_unplaceable
    )
    if fleet.nodes is not None:
        yield gauge("llmgw_fleet_nodes", "Nodes of the fleet.", "state", fleet.nodes)
    if fleet.models is not None:
        yield gauge("llmgw_fleet_models", "Models of the catalog.", "state", fleet.models)
    if fleet.fabrics:
        yield gauge(
            "llmgw_fleet_whole_nodes_free",
            "Nodes of a fabric all of whose GPUs are free; fabric none: nodes on none.",
            "fabric",
            {row.fabric or "none": row.whole_free for row in fleet.fabrics},
        )
    yield GaugeMetricFamily(
        "llmgw_fleet_snapshot_age_seconds", "Age of the figures above.", value=at.heard_age_s
    )
