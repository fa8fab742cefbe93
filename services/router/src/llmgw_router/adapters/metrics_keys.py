"""Metrics of keys and of usage on its way: whether the database that both hang on is heard."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from llmgw_router.adapters.metrics_families import Family
from llmgw_router.adapters.metrics_reading import Reading


def of_keys(at: Reading) -> Iterator[Family]:
    """Absent where nobody is asked for a key, or nobody takes usage."""
    if at.keys is not None:
        yield GaugeMetricFamily("llmgw_router_api_keys", "API keys that are known.", value=at.keys.keys)
        if at.keys.confirmed_s_ago is not None:
            yield GaugeMetricFamily(
                "llmgw_router_api_keys_age_seconds",
                "Since the database last said that they are right; above 900 every request is refused.",
                value=at.keys.confirmed_s_ago,
            )
    if at.usage is not None:
        yield CounterMetricFamily(
            "llmgw_router_usage_records", "Handed to the database or the file.", value=at.usage.shipped
        )
        yield GaugeMetricFamily(
            "llmgw_router_usage_sink_silent_seconds",
            "Since what should take usage records last did; 0 while it does.",
            value=at.usage.silent_s or 0.0,
        )
