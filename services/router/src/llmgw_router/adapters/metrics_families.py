"""Families of metrics made of plain numbers."""

from collections.abc import Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | SummaryMetricFamily


def counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family


def histogram(
    totals: Mapping[str, int], name: str, text: str, prefix: str, bounds: tuple[int, ...]
) -> HistogramMetricFamily:
    """Of the workers' counters `prefix`_le_..., whose bounds are milliseconds."""
    cumulated, buckets = 0, []
    for bound in bounds:
        cumulated += totals[f"{prefix}_le_{bound}"]
        buckets.append((str(bound / 1000), float(cumulated)))
    cumulated += totals[f"{prefix}_le_inf"]
    buckets.append(("+Inf", float(cumulated)))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=totals[f"{prefix}_sum_us"] / 1e6)
