"""Figures of the mirror for Prometheus, read when asked. No model, path or URL is ever a label."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_mirror.adapters.file_answer import Served
from llmgw_mirror.adapters.store import Store
from llmgw_mirror.core.versions import VersionView, WeightsState
from llmgw_mirror.flights import Flights
from llmgw_mirror.throttle import Throttle
from llmgw_mirror.transfer import Tally
from llmgw_mirror.upkeep import Upkeep


class MirrorCollector(Collector):
    """Runs in the thread that renders; reads only whole values."""

    def __init__(self, upkeep: Upkeep, flights: Flights, store: Store, tally: Tally, served: Served) -> None:
        self._upkeep = upkeep
        self._flights = flights
        self._store = store
        self._tally = tally
        self._served = served

    def collect(self) -> Iterator[Metric]:
        yield self._files(self._upkeep.last_seen)
        received = CounterMetricFamily("llmgw_mirror_received_bytes", "Bytes received from upstreams.")
        received.add_metric([], self._tally.received_bytes)
        yield received
        requests = CounterMetricFamily(
            "llmgw_mirror_upstream_requests", "Requests to upstreams by how they ended.", labels=["outcome"]
        )
        for outcome, count in sorted(self._tally.requests.items()):
            requests.add_metric([outcome], count)
        yield requests
        failures = CounterMetricFamily("llmgw_mirror_fetch_failures", "Files given up since the start.")
        failures.add_metric([], self._flights.failures)
        yield failures
        sent = CounterMetricFamily("llmgw_mirror_served_bytes", "Bytes of files sent whole to nodes.")
        sent.add_metric([], self._served.bytes)
        yield sent
        yield GaugeMetricFamily(
            "llmgw_mirror_open_transfers", "Files being sent now.", value=self._served.open
        )
        try:
            total, free = self._store.disk()
        except OSError:
            return  # absent, not zero
        yield GaugeMetricFamily("llmgw_mirror_disk_total_bytes", "Size of the store's disk.", value=total)
        yield GaugeMetricFamily("llmgw_mirror_disk_free_bytes", "Free for the store.", value=free)

    @staticmethod
    def _files(views: Sequence[VersionView]) -> Metric:
        files = GaugeMetricFamily("llmgw_mirror_files", "Files of all versions by state.", labels=["state"])
        counts = dict.fromkeys(WeightsState, 0)
        for view in views:
            for file in view.files:
                counts[file.state] += 1
        for state, count in counts.items():
            files.add_metric([state.value], count)
        return files


class CapCollector(Collector):
    """The cap on what comes, absent while there is none."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle

    def collect(self) -> Iterator[Metric]:
        cap = self._throttle.cap()
        if cap is not None:
            yield GaugeMetricFamily(
                "llmgw_mirror_fetch_cap_bytes_per_second",
                "Cap on all fetches together now; 0 while the schedule lets nothing through.",
                value=cap.bytes_s,
            )
