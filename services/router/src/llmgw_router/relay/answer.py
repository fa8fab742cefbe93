"""The head of an answer as the client gets it, and how its body is framed (W18, W35, W36)."""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from llmgw_router.core.errors import reason
from llmgw_router.core.heads import block, event_stream_type

if TYPE_CHECKING:
    from llmgw_router.relay.known_heads import AnswerHead
    from llmgw_router.relay.upstream import UpstreamConnection


#: How the client learns where the body ends. By the engine's own length, or there is no body ...
BY_LENGTH: Final = 0
#: ... by chunks ...
BY_CHUNKS: Final = 1
#: ... or, as an HTTP/1.0 client knows no chunks, by the close.
BY_CLOSE: Final = 2


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, reason(status))


def framing_of(connection: "UpstreamConnection", *, http10: bool, whole: bool) -> int:
    """BY_LENGTH wherever the length is known: announced by the engine, or `whole` in our hands."""
    if connection.status in (204, 304):
        return BY_LENGTH
    if connection.length is not None and not connection.is_stream:
        return BY_LENGTH
    if whole and not connection.is_stream and http10:
        return BY_LENGTH
    return BY_CLOSE if http10 else BY_CHUNKS


def answer_head(
    connection: "UpstreamConnection",
    framing: int,
    *,
    request_id: bytes,
    date: bytes,
    keep: bool,
    http10: bool,
    cold: bool,
    length: int | None,
) -> bytes:
    """Status line and headers, hop-by-hop ones rebuilt. `length`: of the whole body, where it is at hand."""
    status = connection.status
    lines = _told_by_engine(connection, cold=cold)
    if framing == BY_CHUNKS:
        lines.append(b"transfer-encoding: chunked")
    elif framing == BY_LENGTH and status not in (204, 304):
        announced = connection.length
        lines.append(b"content-length: " + (b"%d" % (length or 0) if announced is None else announced))
    if not keep:
        lines.append(b"connection: close")
    elif http10:
        lines.append(b"connection: keep-alive")
    lines.append(b"x-request-id: " + request_id)
    lines.append(date)
    return b"%b%b%b\r\n\r\n" % (_status_line(status), block(connection.head), b"\r\n".join(lines))


def _told_by_engine(connection: "UpstreamConnection", *, cold: bool) -> list[bytes]:
    """Headers of the engine's that we have a say in, beside those that pass as they are."""
    lines: list[bytes] = []
    content_type = connection.content_type
    if connection.is_stream:
        assert content_type is not None
        lines.append(b"content-type: " + event_stream_type(content_type))
        # Buffering proxies in front would turn a stream into lumps (HO26).
        lines.append(b"cache-control: " + (connection.cache or b"no-cache"))
        lines.append(b"x-accel-buffering: " + (connection.accel or b"no"))
    else:
        if content_type is not None:
            lines.append(b"content-type: " + content_type)
        if connection.cache is not None:
            lines.append(b"cache-control: " + connection.cache)
        if connection.accel is not None:
            lines.append(b"x-accel-buffering: " + connection.accel)
    if connection.encoding is not None:
        lines.append(b"content-encoding: " + connection.encoding)
    location = connection.location
    if location is not None and (cold or location[:1] == b"/" != location[1:2]):
        # An engine's absolute location would name an inside address (W58).
        lines.append(b"location: " + location)
    return lines


def told_again(connection: "UpstreamConnection", known: "AnswerHead") -> bytes:
    """The beginning of the head of an answer in one piece: the same for each that an engine begins as this
    one. Kept with what is known of those; behind it come the length, the id and the date."""
    lines = _told_by_engine(connection, cold=False)
    known.prefix = b"%b%b%b" % (_status_line(connection.status), block(connection.head), block(lines))
    return known.prefix
