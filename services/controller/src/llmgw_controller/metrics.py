"""A controller's own figures, and the fleet's while it leads (M9: of the controllers only the leader tells
those)."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from llmgw_controller.core.capacity import Part
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.view import FleetView, fleet_view
from llmgw_controller.office import Office
from llmgw_kit import telemetry


class ControllerMetrics:
    """One registry. `look` is called on the loop before each scrape is rendered off it."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = telemetry.registry()
        self._leader = Gauge(
            "llmgw_controller_leader", "1 while this controller leads, else 0", registry=self.registry
        )
        self._passes = Counter(
            "llmgw_controller_passes",
            "Reconcile passes by what came of them",
            ["outcome"],
            registry=self.registry,
        )
        self._pass_seconds = Histogram(
            "llmgw_controller_pass_seconds", "From reading the rows to the last command handed over",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5), registry=self.registry,
        )  # fmt: skip
        self._seen: _Seen | None = None
        self.registry.register(self)

    def passed(self, outcome: str, seconds: float) -> None:
        """A pass is over."""
        self._passes.labels(outcome).inc()
        self._pass_seconds.observe(seconds)

    def look(self, office: Office) -> None:
        """Take what only the loop may read."""
        reign = office.reign
        self._leader.set(reign is not None)
        leader, view = office.leader, None
        if reign is not None and reign.ledger.known:
            snapshot, now = reign.snapshot(reign.ledger.stored), reign.tenure.now()
            view = fleet_view(snapshot, verdicts(snapshot, now), now)
        self._seen = _Seen(
            term=leader.term if leader is not None else None,
            store_silent_s=office.leadership.store_silent_s(),
            agents=reign.fleet.connected if reign is not None else None,
            asks=reign.fleet.asks.open if reign is not None else None,
            routers=len(reign.board.watching) if reign is not None else None,
            view=view,
        )

    def collect(self) -> Iterable[Metric]:
        """Absent is what is not known: a standby has no fleet."""
        return self._seen.families() if self._seen is not None else []


class _Seen:
    def __init__(
        self,
        *,
        term: int | None,
        store_silent_s: float | None,
        agents: int | None,
        asks: int | None,
        routers: int | None,
        view: FleetView | None,
    ) -> None:
        self._single = {
            "llmgw_controller_term": ("Term of the lease as last seen, ours or another's", term),
            "llmgw_controller_store_silent_seconds": (
                "Since the store of the lease last answered", store_silent_s,
            ),
            "llmgw_controller_agents_connected": ("Open agent sessions", agents),
            "llmgw_controller_node_asks": ("Logs read and benchmarks run on nodes for operators", asks),
            "llmgw_controller_routers_watching": ("Routers with an open route stream", routers),
        }  # fmt: skip
        self._view = view

    def families(self) -> Iterable[Metric]:
        for name, (text, value) in self._single.items():
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)
        if self._view is not None:
            yield from _fleet(self._view)


def _fleet(view: FleetView) -> Iterable[Metric]:
    gpus = GaugeMetricFamily("llmgw_fleet_devices", "GPUs; the parts add up", labels=["gpu_class", "part"])
    for one in view.capacity:
        for part in Part:
            gpus.add_metric([one.gpu_class, part.value], getattr(one.parts, part.value))
    yield gpus
    nodes = GaugeMetricFamily("llmgw_fleet_nodes", "Nodes by state", labels=["state"])
    for state in ("heard", "silent", "lost"):
        nodes.add_metric([state], getattr(view.node_counts, state))
    yield nodes
    replicas = GaugeMetricFamily(
        "llmgw_fleet_model_replicas", "Replicas by model and phase", labels=["model", "phase"]
    )
    counts: dict[tuple[str, str], int] = {}
    for line in view.replicas:
        key = (line.row.model, line.row.phase.value)
        counts[key] = counts.get(key, 0) + 1
    for (model, phase), count in sorted(counts.items()):
        replicas.add_metric([model, phase], count)
    yield replicas
    held = GaugeMetricFamily("llmgw_fleet_held_requests", "Requests held for a model", labels=["model"])
    for model_line in view.models:
        held.add_metric([model_line.model], model_line.held)
    yield held
    trouble = GaugeMetricFamily("llmgw_fleet_trouble", "Open troubles by kind", labels=["kind"])
    kinds: dict[str, int] = {}
    for entry in view.trouble:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    for kind, count in sorted(kinds.items()):
        trouble.add_metric([kind], count)
    yield trouble
