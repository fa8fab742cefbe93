"""The head of an answer as the client gets it, and how its body is framed (W18, W35, W36)."""

from enum import IntEnum
from typing import TYPE_CHECKING

from llmgw_router.core.errors import reason
from llmgw_router.core.heads import event_stream_type

if TYPE_CHECKING:
    from llmgw_router.relay.upstream import UpstreamConnection


class Framing(IntEnum):
    """How the client learns where the body ends."""

    #: The engine's own length, or none because there is no body.
    LENGTH = 0
    CHUNKED = 1
    #: An HTTP/1.0 client knows no chunks.
    UNTIL_CLOSE = 2


def framing_of(connection: "UpstreamConnection", *, http10: bool, whole: bool) -> Framing:
    """LENGTH wherever the length is known: announced by the engine, or `whole` in our hands."""
    if connection.status in (204, 304):
        return Framing.LENGTH
    if connection.length is not None and not connection.is_stream:
        return Framing.LENGTH
    if whole and not connection.is_stream and http10:
        return Framing.LENGTH
    return Framing.UNTIL_CLOSE if http10 else Framing.CHUNKED


def answer_head(
    connection: "UpstreamConnection",
    framing: Framing,
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
    lines = [b"HTTP/1.1 %d %b" % (status, reason(status)), *connection.head]
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
    lines.append(b"x-request-id: " + request_id)
    lines.append(date)
    if framing is Framing.CHUNKED:
        lines.append(b"transfer-encoding: chunked")
    elif framing is Framing.LENGTH and status not in (204, 304):
        lines.append(
            b"content-length: " + (b"%d" % (length or 0) if connection.length is None else connection.length)
        )
    if not keep:
        lines.append(b"connection: close")
    elif http10:
        lines.append(b"connection: keep-alive")
    return b"\r\n".join(lines) + b"\r\n\r\n"
