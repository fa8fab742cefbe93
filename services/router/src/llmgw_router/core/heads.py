"""What becomes of each header on its way through (W35-W38), and the head of an answer (W18).

Connection-level headers end at each hop (RFC 9110 section 7.6.1); credentials of the caller end
here; `x-llmgw-` is ours alone, in both directions.
"""

from collections.abc import Iterable
from enum import IntEnum

OURS = b"x-llmgw-"


class RequestField(IntEnum):
    """Request headers with a meaning here; all others pass as they are."""

    DROP = 1
    HOST = 2
    LENGTH = 3
    TRANSFER = 4
    CONNECTION = 5
    EXPECT = 6
    ENCODING = 7
    REQUEST_ID = 8
    #: The caller's secrets, and what it accepts: for the cold application only, never for an engine.
    PRIVATE = 9


class ResponseField(IntEnum):
    """The same for answers of an engine."""

    DROP = 1
    LENGTH = 2
    TYPE = 3
    CONNECTION = 4
    TRANSFER = 5
    CACHE = 6
    ACCEL = 7
    LOCATION = 8
    ENCODING = 9


REQUEST: dict[bytes, RequestField] = {
    b"host": RequestField.HOST,
    b"content-length": RequestField.LENGTH,
    b"transfer-encoding": RequestField.TRANSFER,
    b"connection": RequestField.CONNECTION,
    b"expect": RequestField.EXPECT,
    b"content-encoding": RequestField.ENCODING,
    b"x-request-id": RequestField.REQUEST_ID,
    **dict.fromkeys(
        (b"authorization", b"api-key", b"x-api-key", b"cookie", b"accept-encoding"), RequestField.PRIVATE
    ),
    **dict.fromkeys(
        (
            b"keep-alive",
            b"proxy-authenticate",
            b"proxy-authorization",
            b"proxy-connection",
            b"te",
            b"trailer",
            b"upgrade",
            b"http2-settings",
        ),
        RequestField.DROP,
    ),
}

RESPONSE: dict[bytes, ResponseField] = {
    b"content-length": ResponseField.LENGTH,
    b"content-type": ResponseField.TYPE,
    b"connection": ResponseField.CONNECTION,
    b"transfer-encoding": ResponseField.TRANSFER,
    b"cache-control": ResponseField.CACHE,
    b"x-accel-buffering": ResponseField.ACCEL,
    b"location": ResponseField.LOCATION,
    b"content-encoding": ResponseField.ENCODING,
    **dict.fromkeys(
        (
            b"keep-alive",
            b"proxy-authenticate",
            b"proxy-connection",
            b"te",
            b"trailer",
            b"upgrade",
            # Ours are sent instead.
            b"server",
            b"date",
            b"x-request-id",
        ),
        ResponseField.DROP,
    ),
}

#: Named by Connection without being headers.
_OPTIONS = frozenset((b"close", b"keep-alive", b"upgrade", b""))


def named_by_connection(values: Iterable[bytes]) -> frozenset[bytes]:
    """Lower-case names of the headers that `Connection` values declare to be of this hop only."""
    names = {token.strip().lower() for value in values for token in value.split(b",")}
    return frozenset(names - _OPTIONS)


def without(lines: list[bytes], names: frozenset[bytes]) -> list[bytes]:
    """`lines` ("Name: value") less those with a name in `names`."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]


def is_event_stream(content_type: bytes | None) -> bool:
    return content_type is not None and content_type[:17].lower() == b"text/event-stream"


def event_stream_type(content_type: bytes) -> bytes:
    """The engine's type with a charset, which SSE always is in and some clients want to read."""
    return content_type if b";" in content_type else content_type.rstrip() + b"; charset=utf-8"


_ID_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:")


def is_sane_id(value: bytes) -> bool:
    """Whether a client's own request id may travel through our logs and headers (W49)."""
    return 0 < len(value) <= 128 and _ID_BYTES.issuperset(value)
