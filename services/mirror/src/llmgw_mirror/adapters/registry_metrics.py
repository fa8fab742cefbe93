"""Whether the registry answers, for alerts."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_mirror.adapters.registry_http import RegistryHttp


class RegistryCollector(Collector):
    """`http` None: no registry is configured, and the series is absent."""

    def __init__(self, http: RegistryHttp | None) -> None:
        self._http = http

    def collect(self) -> Iterator[Metric]:
        if self._http is not None:
            trouble = self._http.state().trouble
            yield GaugeMetricFamily(
                "llmgw_mirror_registry_up",
                "0 from a failed call of the registry until one that it answers; GetRegistry says why.",
                value=0 if trouble is not None else 1,
            )
