"""What becomes of each header on its way through (W35-W38), and the head of an answer (W18).

Connection-level headers end at each hop (RFC 9110 section 7.6.1); credentials of the caller end
here; `x-llmgw-` is ours alone, in both directions.
"""

from collections.abc import Iterable, Mapping
from typing import Final

OURS = b"x-llmgw-"


# Plain integers, not an Enum: these are compared for every header of every message, and a member
# looked up on an Enum class costs as much as all the rest of that.

#: Passes as it is.
PLAIN: Final = 0

#: Request headers with a meaning here.
REQ_DROP: Final = 1
REQ_HOST: Final = 2
REQ_LENGTH: Final = 3
REQ_TRANSFER: Final = 4
REQ_CONNECTION: Final = 5
REQ_EXPECT: Final = 6
REQ_ENCODING: Final = 7
REQ_ID: Final = 8
#: The caller's secrets, and what it accepts: for the cold application only, never for an engine.
REQ_PRIVATE: Final = 9
#: Read where tracing is on; else it passes.
REQ_TRACE: Final = 10
#: What a client asks of us, not of an engine.
REQ_PROFILE: Final = 30
REQ_HEARTBEAT: Final = 31
#: Another protocol that a client would rather speak.
REQ_UPGRADE: Final = 32

#: Which web page asks, said by browsers.
REQ_ORIGIN: Final = 20

#: The same for answers.
RES_DROP: Final = 1
RES_LENGTH: Final = 2
RES_TYPE: Final = 3
RES_CONNECTION: Final = 4
RES_TRANSFER: Final = 5
RES_CACHE: Final = 6
RES_ACCEL: Final = 7
RES_LOCATION: Final = 8
RES_ENCODING: Final = 9

REQUEST: Final[dict[bytes, int]] = {
    b"host": REQ_HOST,
    b"content-length": REQ_LENGTH,
    b"transfer-encoding": REQ_TRANSFER,
    b"connection": REQ_CONNECTION,
    b"expect": REQ_EXPECT,
    b"content-encoding": REQ_ENCODING,
    b"x-request-id": REQ_ID,
    b"origin": REQ_ORIGIN,
    b"traceparent": REQ_TRACE,
    b"x-llmgw-profile": REQ_PROFILE,
    b"x-llmgw-heartbeat": REQ_HEARTBEAT,
    b"authorization": REQ_PRIVATE,
    b"api-key": REQ_PRIVATE,
    b"x-api-key": REQ_PRIVATE,
    b"cookie": REQ_PRIVATE,
    b"accept-encoding": REQ_PRIVATE,
    b"keep-alive": REQ_DROP,
    b"proxy-authenticate": REQ_DROP,
    b"proxy-authorization": REQ_DROP,
    b"proxy-connection": REQ_DROP,
    b"te": REQ_DROP,
    b"trailer": REQ_DROP,
    b"upgrade": REQ_UPGRADE,
    b"http2-settings": REQ_DROP,
}

RESPONSE: Final[dict[bytes, int]] = {
    b"content-length": RES_LENGTH,
    b"content-type": RES_TYPE,
    b"connection": RES_CONNECTION,
    b"transfer-encoding": RES_TRANSFER,
    b"cache-control": RES_CACHE,
    b"x-accel-buffering": RES_ACCEL,
    b"location": RES_LOCATION,
    b"content-encoding": RES_ENCODING,
    b"keep-alive": RES_DROP,
    b"proxy-authenticate": RES_DROP,
    b"proxy-connection": RES_DROP,
    b"te": RES_DROP,
    b"trailer": RES_DROP,
    b"upgrade": RES_DROP,
    # What pages may read is said by us: an engine speaks for itself alone.
    b"access-control-allow-origin": RES_DROP,
    b"access-control-allow-credentials": RES_DROP,
    b"access-control-expose-headers": RES_DROP,
    # Ours are sent instead.
    b"server": RES_DROP,
    b"date": RES_DROP,
    b"x-request-id": RES_DROP,
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


class Fields:
    """Header names to what becomes of them, remembered as they are spelled.

    Clients and engines say the same few names all the time; the memory is bounded, since hostile
    ones do not.
    """

    __slots__ = ("_kinds", "known")

    MOST = 1024

    def __init__(self, kinds: Mapping[bytes, int], drop: int) -> None:
        self._kinds = {**kinds, OURS: drop}
        #: Look here first, by `known.get(name)`; None means to ask `kind`.
        self.known: dict[bytes, int] = {}

    def kind(self, name: bytes) -> int:
        """What becomes of a header of this name, in any case of its letters."""
        low = name.lower()
        kind = self._kinds.get(low)
        if kind is None:
            kind = self._kinds[OURS] if low.startswith(OURS) else PLAIN
        if len(self.known) < self.MOST:
            self.known[name] = kind
        return kind


def block(lines: list[bytes]) -> bytes:
    """Header lines joined and ended. Empty for none."""
    return b"\r\n".join(lines) + b"\r\n" if lines else b""


def is_event_stream(content_type: bytes | None) -> bool:
    return content_type is not None and content_type[:17].lower() == b"text/event-stream"


def event_stream_type(content_type: bytes) -> bytes:
    """The engine's type with a charset, which SSE always is in and some clients want to read."""
    return content_type if b";" in content_type else content_type.rstrip() + b"; charset=utf-8"


_ID_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:")


def is_sane_id(value: bytes) -> bool:
    """Whether a client's own request id may travel through our logs and headers (W49)."""
    return 0 < len(value) <= 128 and _ID_BYTES.issuperset(value)
