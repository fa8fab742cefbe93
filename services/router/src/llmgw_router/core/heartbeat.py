"""Comments in an event stream: ours to a client that waits, and an engine's before its first event.

A comment is a line that begins with a colon; every reader of event streams skips it (the HTML standard,
"Server-sent events"). It keeps a connection from looking dead, and says nothing of the answer.
"""

import re

import msgspec

from llmgw_router.core.errors import Kind

_LINES = re.compile(rb"\r\n|\n|\r")


class _Asked(msgspec.Struct):
    stream: object = None


class _Error(msgspec.Struct):
    message: str
    type: str | None = None
    code: object = None


class _Told(msgspec.Struct):
    error: _Error


_asked = msgspec.json.Decoder(_Asked).decode
_told = msgspec.json.Decoder(_Told).decode


def streams(body: bytes | bytearray) -> bool:
    """Whether a request's body asks for an event stream."""
    try:
        return _asked(body).stream is True
    except (msgspec.DecodeError, RecursionError):
        # What the engine makes of it is its business; we promise no stream for it.
        return False


def comment(text: str) -> bytes:
    """One comment, a whole block of its own."""
    return b": " + " ".join(text.split()).encode("utf-8", "replace") + b"\n\n"


def only_comments(payload: bytes, *, within: bool = False) -> tuple[bool, bool]:
    """Whether a stream's next bytes say nothing but comments, and whether the last of these is still open.

    `within`: the bytes before ended inside a comment."""
    *ended, last = _LINES.split(payload)
    for line in ended:
        if line and not within and line[:1] != b":":
            return False, False
        within = False
    if last and not within and last[:1] != b":":
        return False, False
    return True, within or bool(last)


def engine_error(status: int, payload: bytes) -> tuple[Kind, str]:
    """What an engine's answer is told as where a status of ours has left already: its own words, if it has
    used OpenAI's shape."""
    try:
        error = _told(payload).error
    except (msgspec.DecodeError, RecursionError):
        what = "no event stream" if status == 200 else f"status {status}"
        return Kind(
            "engine_error", status, "upstream_error", "engine_error"
        ), f"The engine answered with {what}."
    code = error.code if isinstance(error.code, str) else "engine_error"
    return Kind("engine_error", status, error.type or "upstream_error", code), error.message
