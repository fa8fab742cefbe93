"""What a request must be to be let in at all, judged by its head before a byte of its body is read.

The smuggling shapes that llhttp refuses by itself are not here (W51); these are the ones it lets
through, and our own limits.
"""

from llmgw_router.core import errors
from llmgw_router.core.config import Limits
from llmgw_router.core.errors import Kind
from llmgw_router.relay.request import Request

#: Header fields of one request that would be passed on.
MAX_FIELDS = 128

#: Bytes of a body read before anybody is asked who he is: so much costs less than to end the connection.
_UNKNOWN_MAY_SEND = 64 * 1024

Refusal = tuple[Kind, str]


def unacceptable(request: Request, version: str, limits: Limits) -> Refusal | None:
    """Why this request ends the connection, or None. Notes on `request` whether it is HTTP/1.0."""
    if request.refusal is not None:
        return request.refusal
    if version == "1.0":
        request.http10 = True
    elif version != "1.1":
        return errors.BAD_REQUEST, f"HTTP/{version} is not spoken here; use HTTP/1.1."
    elif request.host is None:
        return errors.BAD_REQUEST, "The Host header is missing."
    if len(request.head) > MAX_FIELDS:
        return errors.HEAD_TOO_LARGE, f"More than {MAX_FIELDS} header fields."
    if request.transfer is not None and request.transfer.strip().lower() != b"chunked":
        return errors.BAD_REQUEST, "The only Transfer-Encoding understood here is chunked."
    if request.body_bytes > limits.max_body_bytes:
        return too_large(limits)
    if request.expects is not None and request.expects.strip().lower() != b"100-continue":
        return errors.EXPECTATION_FAILED, "The only expectation understood is 100-continue."
    if request.body_bytes > _UNKNOWN_MAY_SEND or request.transfer is not None or request.expects is not None:
        # Of somebody without a key no long body is taken in, and none is asked for (W41).
        found = request.hub.access.check(request)
        return found if isinstance(found, tuple) else None
    return None


def too_large(limits: Limits) -> Refusal:
    """The refusal of a body over the limit, announced or counted."""
    return errors.TOO_LARGE, f"The request body exceeds {limits.max_body_bytes} bytes."
