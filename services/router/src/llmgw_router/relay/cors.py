"""Browsers: which pages may ask, and what of an answer they may read (W48). Off unless origins are set.

Credentials of a browser's own, its cookies, are never allowed: a key stands in the request.
"""

from typing import TYPE_CHECKING

from llmgw_router.core.routes import Route

if TYPE_CHECKING:
    from llmgw_router.relay.exchange import Exchange

#: What a page may read besides the few headers that it always may.
EXPOSED = (
    b"x-request-id, retry-after, retry-after-ms, x-should-retry, x-llmgw-limit, x-llmgw-decision, "
    b"x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, "
    b"x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens"
)
#: So long a browser remembers what it was allowed.
_MAX_AGE_S = 600
_MOST_ASKED_BYTES = 1024
_ASKED = b"access-control-request-headers:"


def allowed(origins: tuple[str, ...], origin: bytes) -> bytes | None:
    """What `access-control-allow-origin` says to a page of `origin`; None: it may not read our answers."""
    if "*" in origins:
        return b"*"
    return origin if origin.decode("latin-1") in origins else None


def shown(head: bytes, origin: bytes) -> bytes:
    """`head`, or a whole answer, with what lets a page of `origin` read it."""
    line, _, rest = head.partition(b"\r\n")
    return (
        b"%b\r\naccess-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\nvary: origin\r\n%b"
        % (line, origin, EXPOSED, rest)
    )


def preflight(exchange: "Exchange", entry: Route | None) -> bytes:
    """The answer to a browser's question whether it may send a request; given without a key."""
    asked = next((line for line in exchange.head if line[: len(_ASKED)].lower() == _ASKED), b"")
    asked = asked.partition(b":")[2].strip()
    lines = [
        b"HTTP/1.1 204 No Content",
        b"access-control-allow-methods: " + (b"GET, HEAD" if entry is None else entry.allow),
        b"access-control-max-age: %d" % _MAX_AGE_S,
        b"x-request-id: " + (exchange.request_id or b""),
    ]
    if asked and len(asked) <= _MOST_ASKED_BYTES:
        lines.append(b"access-control-allow-headers: " + asked)
    if not exchange.keep:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"
