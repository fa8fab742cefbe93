"""What of TLS somebody should be woken for: a certificate about to end, new files that are not in force, and
clients that are refused. Nothing while there is no TLS."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_kit.tls_watch import WatchedTls


class TlsCollector(Collector):
    """Runs in the thread that renders; reads only whole values."""

    def __init__(self, tls: WatchedTls) -> None:
        self._tls = tls

    def collect(self) -> Iterator[Metric]:
        if (end := self._tls.now.expires_at) is not None:
            yield GaugeMetricFamily(
                "llmgw_mirror_tls_expires_timestamp_seconds", "When the certificate in use ends.", value=end
            )
        yield GaugeMetricFamily(
            "llmgw_mirror_tls_refused", "1 while the newest TLS files are not in force.",
            value=self._tls.refused is not None,
        )  # fmt: skip
        failed = CounterMetricFamily(
            "llmgw_mirror_tls_handshakes_failed", "Handshakes on the HTTP listener that came to nothing."
        )
        failed.add_metric([], self._tls.handshakes_failed)
        yield failed
