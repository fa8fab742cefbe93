"""An engine that answers 200 and then says in its first event that it failed (HO02).

Nothing has reached the client then, so the failure can still be a status, and another engine be asked.
What is looked at are the first bytes: a stream that begins like an answer is passed on at once, and only
one that begins like an error is waited for to the end of that event.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

#: An error event longer than this is passed on as it is.
MOST_BYTES = 16 * 1024
#: So long the rest of it is waited for.
WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """`status`: the event's own numeric code where that is 400 to 599, else 502. `content`: its JSON."""

    status: int
    content: bytes


#: Judgements other than a Failure.
PASS: Final = 0
WAIT: Final = 1

#: Lines of an event before its data.
_LINES = re.compile(rb"(?:(?:event|id|retry):[^\r\n]*(?:\r\n|\r|\n))*")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:")
#: Such lines are short.
_MOST_LINES_BYTES = 256
#: How an error's JSON begins, in every API that is relayed; blanks aside.
_BEGINNINGS = (
    b'{"error":{',
    b'{"error":"',
    b'{"object":"error"',
    b'{"type":"error"',
    b'{"type":"response.failed"',
)
_BLANKS = re.compile(rb"[ \t]+")
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


def judge(data: bytes, *, whole: bool = False) -> int | Failure:
    """What to do with a stream that begins with `data`: PASS, WAIT for more, or answer with a Failure.

    `whole`: nothing will follow."""
    if data[:7] == b"data: {" and data[7:12] in (b'"id":', b'"choi'):
        # Nearly every stream.
        return PASS
    if data[:23] == b"event: response.created" or data[:20] == b"event: message_start":
        return PASS
    lines = _LINES.match(data)
    assert lines is not None
    at = lines.end()
    if not data.startswith(b"data:", at):
        begun = data[at:]
        if whole or at > _MOST_LINES_BYTES or len(begun) > _MOST_LINES_BYTES:
            return PASS
        return WAIT if any(_agree(begun, field) for field in _FIELDS) else PASS
    at += 5
    begun = _BLANKS.sub(b"", data[at : at + 64])
    if not any(_agree(begun, one) for one in _BEGINNINGS):
        return PASS
    end = _END.search(data, at)
    if end is None:
        return PASS if whole or len(data) > MOST_BYTES else WAIT
    return failure_of(data[at : end.start()].strip(b" \t")) or PASS


def _agree(begun: bytes, one: bytes) -> bool:
    """Whether the one begins with the other, whichever is longer."""
    return begun.startswith(one) or one.startswith(begun)


def failure_of(content: bytes) -> Failure | None:
    """The failure that one event's data tells; None: it is not plainly one."""
    try:
        told = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    error = told.get("error")
    if told.get("type") == "response.failed":
        response = told.get("response")
        error = response.get("error") if isinstance(response, dict) else None
    elif error is None and (told.get("object") == "error" or told.get("type") == "error"):
        error = told
    if not isinstance(error, dict):
        return Failure(502, _shaped(error)) if isinstance(error, str) and error else None
    content = content if isinstance(told.get("error"), dict) else msgspec.json.encode({"error": error})
    return Failure(_status(error), content)


def _shaped(message: str) -> bytes:
    return msgspec.json.encode(
        {"error": {"message": message, "type": "upstream_error", "param": None, "code": None}}
    )


def _status(error: dict[str, object]) -> int:
    for name in ("code", "status", "status_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:4])
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return 502
