"""Every refusal and interruption the data plane can utter, with its shape on the wire (W01-W17, W24-W30).

A wrong class of status is a real defect: OpenAI clients retry 408, 409, 429 and >= 500 and nothing
else, so a lifecycle problem sent as 400 is never retried and a permanent one sent as 500 is retried
for nothing.
"""

import math
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to fail. `label` names it in metrics and logs, where a code of null has no name."""

    label: str
    status: int
    type: str
    code: str | None
    param: str | None = None
    #: The connection cannot be used again: what follows on it is not a request, or was never read.
    close: bool = False


_INVALID = "invalid_request_error"
_SERVER = "server_error"
_UPSTREAM = "upstream_error"

MALFORMED_JSON = Kind("malformed_json", 400, _INVALID, None)
BAD_FORM = Kind("bad_form", 400, _INVALID, None)
BAD_MODEL = Kind("bad_model", 400, _INVALID, None, param="model")
BAD_PROFILE = Kind("profile_not_available", 400, _INVALID, "profile_not_available")
BAD_REQUEST = Kind("bad_request", 400, _INVALID, None, close=True)
#: One for no key, an unknown, a revoked and an expired one (W03).
INVALID_KEY = Kind("invalid_api_key", 401, _INVALID, "invalid_api_key")
MODEL_NOT_FOUND = Kind("model_not_found", 404, _INVALID, "model_not_found", param="model")
RESPONSE_NOT_FOUND = Kind("response_not_found", 404, _INVALID, "response_not_found")
METHOD_NOT_ALLOWED = Kind("method_not_allowed", 405, _INVALID, "method_not_allowed")
REQUEST_TIMEOUT = Kind("request_timeout", 408, _INVALID, "request_timeout", close=True)
TOO_LARGE = Kind("request_too_large", 413, _INVALID, "request_too_large", close=True)
CONTENT_ENCODING = Kind("unsupported_content_encoding", 415, _INVALID, "unsupported_content_encoding")
EXPECTATION_FAILED = Kind("expectation_failed", 417, _INVALID, "expectation_failed", close=True)
HEAD_TOO_LARGE = Kind("request_head_too_large", 431, _INVALID, "request_head_too_large", close=True)
INTERNAL = Kind("internal_error", 500, _SERVER, "internal_error", close=True)
NO_UPGRADE = Kind("upgrade_not_supported", 501, _INVALID, "upgrade_not_supported", close=True)
UNREACHABLE = Kind("upstream_unreachable", 502, _UPSTREAM, "upstream_unreachable")
UPSTREAM_INVALID = Kind("upstream_invalid_response", 502, _UPSTREAM, "upstream_invalid_response")
#: The engine refused *our* credential; a caller must not be told that its key is bad (W15).
UPSTREAM_DENIED = Kind("upstream_denied", 502, _UPSTREAM, "upstream_denied")
MODEL_LOADING = Kind("model_loading", 503, _SERVER, "model_loading", param="model")
NO_REPLICA = Kind("no_replica_available", 503, _SERVER, "no_replica_available", param="model")
#: Every place is taken, and nobody more may wait for one; or it waited for as long as it may (W12).
QUEUE_FULL = Kind("queue_full", 503, _SERVER, "no_replica_available", param="model")
QUEUE_TIMEOUT = Kind("queue_timeout", 503, _SERVER, "no_replica_available", param="model")
#: No table was pushed yet: whether a model exists is not known, and a 404 would be believed.
STARTING = Kind("router_starting", 503, _SERVER, "router_starting")
#: The store of keys has been away for longer than what was read of it can be believed.
KEYS_AWAY = Kind("keys_unavailable", 503, _SERVER, "keys_unavailable")
STOPPING = Kind("router_stopping", 503, _SERVER, "router_stopping", close=True)
COLD_AWAY = Kind("service_unavailable", 503, _SERVER, "service_unavailable")
#: The phase that expired stands in the code (W14, HO09).
TIMEOUT_CONNECT = Kind("upstream_timeout_connect", 504, _UPSTREAM, "upstream_timeout_connect")
TIMEOUT_FIRST_BYTE = Kind("upstream_timeout_first_byte", 504, _UPSTREAM, "upstream_timeout_first_byte")
TIMEOUT_TOTAL = Kind("deadline_exceeded", 504, _UPSTREAM, "deadline_exceeded")
# After the head has left there is no status any more: these are told in band, or by a cut.
INTERRUPTED = Kind("stream_interrupted", 502, _UPSTREAM, "stream_interrupted")
STREAM_IDLE = Kind("stream_idle_timeout", 504, _UPSTREAM, "stream_idle_timeout")
WRITE_STALL = Kind("client_stalled", 499, _INVALID, "client_stalled")

KINDS: tuple[Kind, ...] = tuple(value for value in globals().values() if isinstance(value, Kind))
#: Labels of all kinds, in a fixed order: what the metrics count refusals by.
CODES: tuple[str, ...] = tuple(kind.label for kind in KINDS)

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


def reason(status: int) -> bytes:
    """Reason phrase of an HTTP status, empty for an unknown one (RFC 9112 section 4 allows that)."""
    return _REASONS.get(status, b"")


def body(kind: Kind, message: str, *, code: str | None = None) -> bytes:
    """The OpenAI error object. `code` overrides the kind's own."""
    return _json(
        {"error": {"message": message, "type": kind.type, "param": kind.param, "code": code or kind.code}}
    )


def retry_after(seconds: float | None, *, default_s: float = 5.0) -> int:
    """`Retry-After` in whole seconds, at least 1 (RFC 9110 section 10.2.3)."""
    return max(1, math.ceil(default_s if seconds is None else seconds))


def limit(name: str, value: float, profile: str | None = None) -> bytes:
    """Value of `x-llmgw-limit`: the one limit that fired, as the settings call it, and whose it is."""
    told = f"{name}={value:.15g}" if profile is None else f"{name}={value:.15g}; profile={profile}"
    return told.encode()


def answer(
    kind: Kind,
    message: str,
    *,
    request_id: bytes,
    code: str | None = None,
    retry_after_s: int | None = None,
    allow: bytes | None = None,
    close: bool = False,
    head_only: bool = False,
    fired: bytes | None = None,
) -> bytes:
    """A whole response. The connection ends after it if `close` or the kind says so."""
    content = body(kind, message, code=code)
    lines = [
        b"HTTP/1.1 %d %b" % (kind.status, reason(kind.status)),
        b"content-type: application/json",
        b"content-length: %d" % len(content),
        b"x-request-id: " + request_id,
    ]
    if retry_after_s is not None:
        lines.append(b"retry-after: %d" % retry_after_s)
    if fired is not None:
        lines.append(b"x-llmgw-limit: " + fired)
    if allow is not None:
        lines.append(b"allow: " + allow)
    if kind.status == 401:
        # RFC 9110 section 11.6.1.
        lines.append(b"www-authenticate: Bearer")
    if close or kind.close:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n" + (b"" if head_only else content)
