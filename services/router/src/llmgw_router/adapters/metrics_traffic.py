"""Metrics of requests: sums of what workers wrote into the slots, and of what they told by model."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from llmgw_router.adapters.metrics_families import Family, counter, gauge, histogram
from llmgw_router.adapters.metrics_reading import Reading
from llmgw_router.core.errors import CODES
from llmgw_router.relay.slots import DURATION_BUCKETS_MS, RETRY_REASONS, TTFT_BUCKETS_MS, WAIT_BUCKETS_MS

_CLASSES = {
    "2xx": "answers_2xx",
    "3xx": "answers_3xx",
    "4xx": "answers_4xx",
    "5xx": "answers_5xx",
    "client_gone": "client_gone",
}
_COUNTERS = (
    ("streams", "llmgw_router_streams", "Answers that were event streams."),
    ("error_events", "llmgw_router_error_events", "Streams in which the engine itself said that it failed."),
    ("heartbeats", "llmgw_router_heartbeats", "Comments sent to streams that wait."),
    ("streams_broken", "llmgw_router_streams_broken", "Streams ended by an error event of the router's."),
    ("cold_requests", "llmgw_router_cold_requests", "Requests that went to no engine."),
    ("stream_chunks", "llmgw_router_stream_chunks", "Reads of event streams that were passed on."),
    ("traces_sampled", "llmgw_router_traces_sampled", "Requests whose spans are exported."),
    ("bytes_from_clients", "llmgw_router_received_bytes", "Bytes read from clients."),
    ("bytes_to_clients", "llmgw_router_sent_bytes", "Bytes written to clients."),
    ("connections_accepted", "llmgw_router_connections", "Client connections accepted."),
    ("connections_refused", "llmgw_router_connections_refused", "Client connections over max_connections."),
    ("upstream_connects", "llmgw_router_upstream_connects", "Connections opened to engines."),
    ("log_lines_dropped", "llmgw_router_log_lines_dropped", "Log lines of relay workers that were dropped."),
)
_CHOICES = {"prefix": "by_prefix", "session": "by_session", "panic": "in_panic"}
_EJECTIONS = {
    "ejected": "ejections",
    "spared": "ejections_spared",
    "tried": "trials",
    "back": "endpoints_back",
    "denied": "endpoints_denied",
    "slow": "endpoints_slow",
}
_WAITS = (
    ("queue", "llmgw_router_queue_seconds", "Time in the queue of a busy model; of requests that waited."),
    ("hold", "llmgw_router_hold_seconds", "Time held until a cold model was up; of requests that were held."),
    ("connect", "llmgw_router_upstream_connect_seconds", "Opening a connection to an engine."),
    (
        "gap",
        "llmgw_router_stream_gap_seconds",
        "Mean time between two reads of a stream; one value a stream.",
    ),
    ("lag", "llmgw_router_loop_lag_seconds", "How late a relay worker's loop came to its sweep."),
)


def of_traffic(at: Reading) -> Iterator[Family]:
    totals = at.totals
    yield counter(
        "llmgw_router_requests",
        "Finished requests by class of status; client_gone: the client left first (499).",
        "code_class",
        {label: totals[name] for label, name in _CLASSES.items()},
    )
    yield counter(
        "llmgw_router_refusals",
        "Requests the router answered, or streams it ended, with an error of its own.",
        "code",
        {code: totals[f"refused_{code}"] for code in CODES},
    )
    yield counter(
        "llmgw_router_model_picks",
        "Requests handed to an endpoint of the model, repeated ones counted again.",
        "model",
        {model: count.picks for model, count in at.by_model.items()},
    )
    yield counter(
        "llmgw_router_model_upstream_failures",
        "Endpoint failed before the first byte of its answer.",
        "model",
        {model: count.failed for model, count in at.by_model.items()},
    )
    yield counter(
        "llmgw_router_model_upstream_breaks",
        "Endpoint broke off in the middle of its answer.",
        "model",
        {model: count.broken for model, count in at.by_model.items()},
    )
    yield gauge("llmgw_router_in_flight", "Requests at engines now.", "model", at.in_flight)
    yield gauge("llmgw_router_held", "Requests that wait, for their model or for room.", "model", at.held)
    yield counter(
        "llmgw_router_retries",
        "Asked again: stale: the pooled connection was closed by the engine; all else: at another endpoint.",
        "reason",
        {reason: totals[f"retries_{reason}"] for reason in ("stale", *RETRY_REASONS)},
    )
    for key, name, text in _COUNTERS:
        yield CounterMetricFamily(name, text, value=totals[key])
    yield GaugeMetricFamily(
        "llmgw_router_requests_running", "Requests in the relay now.", value=totals["requests_running"]
    )
    yield GaugeMetricFamily(
        "llmgw_router_queued",
        "Requests that wait for room at a busy model now.",
        value=totals["requests_queued"],
    )
    yield GaugeMetricFamily(
        "llmgw_router_connections_open", "Client connections open now.", value=totals["connections_open"]
    )
    yield histogram(
        totals,
        "llmgw_router_time_to_first_byte_seconds",
        "From a whole request to the first byte of the engine's body.",
        "ttft",
        TTFT_BUCKETS_MS,
    )
    yield histogram(
        totals,
        "llmgw_router_request_duration_seconds",
        "From a whole request to the last byte of the answer.",
        "duration",
        DURATION_BUCKETS_MS,
    )
    for prefix, name, text in _WAITS:
        yield histogram(totals, name, text, prefix, WAIT_BUCKETS_MS)
    yield from _choosing(totals)
    if at.usage_noted:
        yield from _tokens(totals)
    yield from _aborts(totals)
    yield from _by_model(at)


def _choosing(totals: Mapping[str, int]) -> Iterator[Family]:
    yield counter(
        "llmgw_router_choices",
        "Endpoints chosen for a reason other than load: prefix, session; panic: none was usable.",
        "by",
        {by: totals[f"picks_{key}"] for by, key in _CHOICES.items()},
    )
    yield CounterMetricFamily(
        "llmgw_router_retries_over_budget",
        "Not asked again, since too many were.",
        value=totals["retries_over_budget"],
    )
    yield counter(
        "llmgw_router_ejections",
        "Endpoints: ejected; spared, since their model had no other; tried; back; denied: they refused our "
        "credential; slow.",
        "what",
        {what: totals[key] for what, key in _EJECTIONS.items()},
    )


def _tokens(totals: Mapping[str, int]) -> Iterator[Family]:
    yield counter(
        "llmgw_router_tokens",
        "Tokens told, or events counted; no guesses. Cached ones are part of the prompt.",
        "kind",
        {kind: totals[f"tokens_{kind}"] for kind in ("prompt", "cached", "output")},
    )
    yield counter(
        "llmgw_router_usage_requests",
        "Requests by who said what they used.",
        "source",
        {source: totals[f"usage_{source}"] for source in ("engine", "counted", "estimated", "unknown")},
    )
    yield CounterMetricFamily(
        "llmgw_router_usage_lines_lost",
        "Lines of usage that found no room on the disk.",
        value=totals["usage_lines_lost"],
    )


def _aborts(totals: Mapping[str, int]) -> Iterator[Family]:
    yield counter(
        "llmgw_router_aborts",
        "Requests left by their client: waiting: before a byte of the answer; answer: in the middle of it.",
        "phase",
        {"waiting": totals["aborted_waiting"], "answer": totals["aborted_answers"]},
    )
    yield CounterMetricFamily(
        "llmgw_router_aborted_stream_chunks",
        "Reads of answers that had been passed on when their client left: for nobody in the end.",
        value=totals["aborted_chunks"],
    )
    yield CounterMetricFamily(
        "llmgw_router_aborted_engine_seconds",
        "Time that engines had worked on requests whose client then left.",
        value=totals["aborted_engine_us"] / 1e6,
    )
    yield CounterMetricFamily(
        "llmgw_router_engine_aborts",
        "Connections to engines closed because the client had left: what stops the engine.",
        value=totals["engine_aborts"],
    )


def _by_model(at: Reading) -> Iterator[Family]:
    requests = CounterMetricFamily(
        "llmgw_router_model_requests",
        "Finished requests of a model by class of status, its refusals by the router included.",
        labels=["model", "code_class"],
    )
    duration = SummaryMetricFamily(
        "llmgw_router_model_request_duration_seconds", "Whole requests of a model.", labels=["model"]
    )
    first = SummaryMetricFamily(
        "llmgw_router_model_time_to_first_byte_seconds",
        "Until the first byte of its answers.",
        labels=["model"],
    )
    chunks = CounterMetricFamily(
        "llmgw_router_model_chunks", "Reads of a model's answers that were passed on.", labels=["model"]
    )
    tokens = CounterMetricFamily(
        "llmgw_router_model_tokens", "Tokens of a model as far as anybody told.", labels=["model", "kind"]
    )
    for name, count in at.model_counts.items():
        classes = {label: getattr(count, field) for label, field in _CLASSES.items()}
        for label, value in classes.items():
            requests.add_metric([name, label], value)
        duration.add_metric([name], sum(classes.values()), count.duration_sum_us / 1e6)
        first.add_metric([name], count.answered, count.ttft_sum_us / 1e6)
        chunks.add_metric([name], count.chunks)
        tokens.add_metric([name, "prompt"], count.tokens_prompt)
        tokens.add_metric([name, "output"], count.tokens_output)
    yield from (requests, duration, first, chunks)
    if at.usage_noted:
        yield tokens
