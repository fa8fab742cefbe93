"""A controller's own figures, and the fleet's while it leads (M9: of the controllers only the leader tells
those)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from llmgw_controller.core.availability import Availability
from llmgw_controller.core.capacity import Part
from llmgw_controller.core.idleness import verdicts
from llmgw_controller.core.state import Snapshot
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
        self._evictions = 0
        self._counted_term: int | None = None
        #: Receipts of the present term that are counted already.
        self._counted: set[str] = set()
        #: None: no mirror is configured, or nobody has looked yet.
        self.mirror_reachable: Callable[[], bool | None] = lambda: None
        self.registry.register(self)

    def passed(self, outcome: str, seconds: float) -> None:
        """A pass is over."""
        self._passes.labels(outcome).inc()
        self._pass_seconds.observe(seconds)

    def look(self, office: Office) -> None:
        """Take what only the loop may read."""
        reign = office.reign
        self._leader.set(reign is not None)
        leader, fleet = office.leader, None
        if reign is not None and reign.ledger.known:
            now = reign.tenure.now()
            read_at = reign.ledger.read_at
            assert read_at is not None
            fleet = _Fleet(reign.snapshot(reign.ledger.stored), now, max(0.0, now - read_at))
            self._count_evictions(fleet.snapshot)
        self._seen = _Seen(
            term=leader.term if leader is not None else None,
            store_silent_s=office.leadership.store_silent_s(),
            agents=reign.fleet.connected if reign is not None else None,
            asks=reign.fleet.asks.open if reign is not None else None,
            routers=len(reign.board.watching) if reign is not None else None,
            fleet=fleet,
            evictions=self._evictions if fleet is not None else None,
            mirror=self.mirror_reachable(),
        )

    def _count_evictions(self, snapshot: Snapshot) -> None:
        """Those decided while this controller leads; a leader before it has counted its own."""
        if snapshot.term != self._counted_term:
            self._counted_term, self._counted = snapshot.term, set()
        self._counted &= snapshot.stored.evictions.keys()
        for key, receipt in snapshot.stored.evictions.items():
            if receipt.decided_at >= snapshot.term_started and key not in self._counted:
                self._counted.add(key)
                self._evictions += 1

    def collect(self) -> Iterable[Metric]:
        """Absent is what is not known: a standby has no fleet."""
        return self._seen.families() if self._seen is not None else []


@dataclass(frozen=True)
class _Fleet:
    """Read on the loop; looked through where it is rendered, for of a large fleet that takes long."""

    snapshot: Snapshot
    now: float
    rows_age_s: float


class _Seen:
    def __init__(
        self,
        *,
        term: int | None,
        store_silent_s: float | None,
        agents: int | None,
        asks: int | None,
        routers: int | None,
        fleet: _Fleet | None,
        evictions: int | None,
        mirror: bool | None,
    ) -> None:
        self._single = {
            "llmgw_controller_term": ("Term of the lease as last seen, ours or another's", term),
            "llmgw_controller_store_silent_seconds": (
                "Since the store of the lease last answered", store_silent_s,
            ),
            "llmgw_controller_agents_connected": ("Open agent sessions", agents),
            "llmgw_controller_node_asks": ("Logs read and benchmarks run on nodes for operators", asks),
            "llmgw_controller_routers_watching": ("Routers with an open route stream", routers),
            "llmgw_controller_mirror_reachable": (
                "1 while the mirror's gRPC answers, else 0", None if mirror is None else int(mirror),
            ),
        }  # fmt: skip
        self._found = fleet
        self._evictions = evictions

    def families(self) -> Iterable[Metric]:
        for name, (text, value) in self._single.items():
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)
        if self._found is not None:
            snapshot, now = self._found.snapshot, self._found.now
            view = fleet_view(snapshot, verdicts(snapshot, now), now)
            yield from _fleet(view)
            yield GaugeMetricFamily(
                "llmgw_fleet_data_age_seconds",
                "Of the oldest part of the figures: the rows, or the beat of a node in reach",
                value=max(view.age_s, self._found.rows_age_s),
            )
        if self._evictions is not None:
            yield CounterMetricFamily(
                "llmgw_fleet_evictions",
                "Idle replicas that were told to leave for others, while this controller led",
                value=self._evictions,
            )


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family


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
    for replica in view.replicas:
        key = (replica.row.model, replica.row.phase.value)
        counts[key] = counts.get(key, 0) + 1
    for (model, phase), count in sorted(counts.items()):
        replicas.add_metric([model, phase], count)
    yield replicas
    yield _gauge("llmgw_fleet_replicas", "Replicas of the fleet", "state", {
        "ready": sum(line.ready for line in view.models),
        "wanted": sum(line.wanted for line in view.models),
    })  # fmt: skip
    states = dict.fromkeys((state.value for state in Availability), 0)
    for line in view.models:
        states[line.availability.value] += 1
    yield _gauge("llmgw_fleet_models", "Models of the catalog by state", "state", states)
    yield _gauge(
        "llmgw_fleet_held_requests", "Requests held for a model", "model",
        {line.model: line.held for line in view.models},
    )  # fmt: skip
    yield _gauge(
        "llmgw_fleet_in_flight_requests", "Requests at engines; absent where a router is not heard", "model",
        {line.model: line.in_flight for line in view.models if line.in_flight is not None},
    )  # fmt: skip
    yield _gauge(
        "llmgw_fleet_whole_nodes_free",
        "Nodes of a fabric all of whose GPUs are free; fabric none: nodes on none", "fabric",
        {line.fabric or "none": line.whole_free for line in view.fabrics},
    )  # fmt: skip
    trouble = GaugeMetricFamily("llmgw_fleet_trouble", "Open troubles by kind", labels=["kind"])
    kinds: dict[str, int] = {}
    for entry in view.trouble:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + 1
    for kind, count in sorted(kinds.items()):
        trouble.add_metric([kind], count)
    yield trouble
