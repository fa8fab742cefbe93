"""Spans of one sampled exchange, made from its access record when it is over.

Pure. Shape: OTLP's JSON encoding (opentelemetry-proto 1.x: ids as hex, times as decimal strings of
nanoseconds). Names: OpenTelemetry semantic conventions, http and gen_ai. Two spans always make the trace
whole: what the client waited for (SERVER), and below it the engine's part (CLIENT), whose id the engine was
given; one more for a wait before that (INTERNAL).
"""

from typing import Any, Final

from llmgw_router.relay.ipc import AccessRecord

_INTERNAL: Final = 1
_SERVER: Final = 2
_CLIENT: Final = 3
_ERROR: Final = 2

#: gen_ai.operation.name by path; others are named by their path alone.
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}

Span = dict[str, Any]


def spans(record: AccessRecord) -> list[Span]:
    """Every span of this exchange. Empty for one that is not sampled."""
    trace = record.trace
    if trace is None:
        return []
    end_ns = int(record.at_unix_s * 1e9)
    start_ns = end_ns - int(record.duration_ms * 1e6)
    operation = _OPERATIONS.get(record.path)
    name = f"{operation} {record.model}" if operation and record.model else f"{record.method} {record.path}"
    attributes = _attributes(record, operation)
    root = _span(trace.trace_id, trace.span_id, trace.parent_id, name, _SERVER, start_ns, end_ns)
    root["attributes"] = [_attribute(key, value) for key, value in attributes.items() if value is not None]
    failed = record.status >= 500 or record.code is not None
    if failed and record.status != 499:
        root["status"] = {"code": _ERROR, "message": record.code or f"status {record.status}"}
    made = [root]
    if record.ttft_ms is not None:
        root["events"] = [_event("first_byte", start_ns + int(record.ttft_ms * 1e6))]
    if record.sent_ms is None or record.endpoint_id is None:
        return made
    sent_ns = start_ns + int(record.sent_ms * 1e6)
    waited = (record.queue_ms or 0.0) + (record.hold_ms or 0.0)
    if waited:
        word = "hold" if record.hold_ms else "queue"
        # Its id is nobody's parent and need only be another one: the engine's, turned.
        wait_id = f"{int(trace.engine_span_id, 16) ^ 0xFFFF_FFFF_FFFF_FFFF:016x}"
        made.append(_span(trace.trace_id, wait_id, trace.span_id, word, _INTERNAL, start_ns, sent_ns))
    engine = _span(trace.trace_id, trace.engine_span_id, trace.span_id, name, _CLIENT, sent_ns, end_ns)
    engine["attributes"] = [
        _attribute(key, value)
        for key, value in {
            "llmgw.endpoint.id": record.endpoint_id,
            "llmgw.retries": record.retries,
            "llmgw.stream.chunks": record.chunks,
        }.items()
        if value is not None
    ]
    if record.connect_ms is not None:
        engine["events"] = [_event("connected", sent_ns + int(record.connect_ms * 1e6))]
    if "status" in root:
        engine["status"] = root["status"]
    made.append(engine)
    return made


def _attributes(record: AccessRecord, operation: str | None) -> dict[str, Any]:
    return {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "http.request.body.size": record.bytes_in,
        "http.response.body.size": record.bytes_out,
        "error.type": record.code,
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": record.alias or record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.usage.input_tokens": record.tokens_in,
        "gen_ai.usage.output_tokens": record.tokens_out,
        "llmgw.request.id": record.request_id,
        "llmgw.profile": record.profile,
        "llmgw.tenant": record.tenant,
        "llmgw.key.id": record.key_id,
        "llmgw.endpoint.id": record.endpoint_id,
    }


def _span(
    trace_id: str, span_id: str, parent_id: str | None, name: str, kind: int, start_ns: int, end_ns: int
) -> Span:
    made: Span = {
        "traceId": trace_id,
        "spanId": span_id,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(max(start_ns, end_ns)),
    }
    if parent_id is not None:
        made["parentSpanId"] = parent_id
    return made


def _event(name: str, at_ns: int) -> dict[str, Any]:
    return {"name": name, "timeUnixNano": str(at_ns)}


def _attribute(key: str, value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"key": key, "value": {"boolValue": value}}
        case int():
            # 64-bit integers are strings in protobuf's JSON.
            return {"key": key, "value": {"intValue": str(value)}}
        case float():
            return {"key": key, "value": {"doubleValue": value}}
        case _:
            return {"key": key, "value": {"stringValue": str(value)}}


def export(spans_: list[Span], *, service_name: str, version: str, instance: str) -> dict[str, Any]:
    """The body of one `POST /v1/traces`."""
    resource = {"service.name": service_name, "service.version": version, "service.instance.id": instance}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute(key, value) for key, value in resource.items()]},
                "scopeSpans": [{"scope": {"name": "llmgw.router", "version": version}, "spans": spans_}],
            }
        ]
    }
