"""Event streams cut short: what is said in band, and how to tell an end from a cut (W22-W30).

The bytes of a stream are never parsed to be relayed. Kept is only what an interruption would
need: the last bytes, for whether an event is open and whether the stream had finished.
"""

import re

import msgspec

from llmgw_router.core.errors import Kind, body
from llmgw_router.core.first_event import Failure, failure_of
from llmgw_router.core.routes import Dialect

_json = msgspec.json.Encoder().encode

#: As long as the beginning of an event that says what it is.
_TAIL_BYTES = 96
#: Any two line ends in a row. CRLF is one line end, so it needs company.
_BLANK = (b"\n\n", b"\r\r", b"\n\r", b"\n\r\n", b"\r\r\n")
_SEQUENCE = re.compile(rb'"sequence_number"\s*:\s*(\d+)')

#: An event that begins as errors do in one API or another.
_ERROR_LINE = re.compile(
    rb'(?:^|[\r\n])data:[ ]?(\{\s*"(?:error"\s*:\s*[{"]|object"\s*:\s*"error"'
    rb'|type"\s*:\s*"(?:error|response\.failed)")'
    rb"[^\r\n]*)"
)

#: Types of the last event of a finished stream.
_LAST: dict[Dialect, tuple[bytes, ...]] = {
    Dialect.CHAT: (),
    Dialect.RESPONSES: (b"response.completed", b"response.failed", b"response.incomplete"),
    Dialect.MESSAGES: (b"message_stop",),
}
#: The last line of a finished chat. At its beginning only: within JSON no line begins, whatever it says.
_DONE = re.compile(rb"[\r\n]data:[ ]?\[DONE\]")


def _event_of(types: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """How an event of one of these types begins: its `event` field, or the first of its JSON."""
    names = b"|".join(map(re.escape, types))
    return re.compile(
        rb"[\r\n](?:event:[ ]?(?:%b)(?![\w.])"
        rb'|data:[ ]?\{\s*(?:"sequence_number"\s*:\s*\d+\s*,\s*)?"type"\s*:\s*"(?:%b)")' % (names, names)
    )


_ENDINGS = {dialect: _event_of(types) for dialect, types in _LAST.items()}


def _from_its_line(tail: bytes) -> bytes:
    """The same, with a line's end before it where it is all that there has been so far."""
    return tail if len(tail) >= _TAIL_BYTES else b"\n" + tail


class EventTail:
    """The end of what was relayed so far."""

    __slots__ = ("_before", "_dialect", "_finished", "_last", "_sequence", "_tail", "_typed")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        #: Whether its last event has a type.
        self._typed = dialect is not Dialect.CHAT
        #: Ends with the last bytes that were relayed, as many as are looked at; cut when that is.
        self._tail = b""
        #: The last two pieces, kept as they are.
        self._last = self._before = b""
        self._finished = False
        self._sequence: bytes | None = None

    def note(self, payload: bytes) -> None:
        """Called with every relayed piece, in order; costs little in the common dialect."""
        self._before, self._last = self._last, payload
        if self._typed or len(payload) < _TAIL_BYTES:
            before = self._tail[-_TAIL_BYTES:]
            self._tail = before + payload
            if self._typed:
                self._note_typed(before, payload)
        else:
            self._tail = payload

    def _note_typed(self, before: bytes, payload: bytes) -> None:
        # These name their last event at its beginning, which may be far behind when it ends, and which
        # may have come in two reads.
        text = self._tail
        for word in _LAST[self._dialect]:
            if word in text and _ENDINGS[self._dialect].search(_from_its_line(before) + payload) is not None:
                self._finished = True
        at = payload.rfind(b'"sequence_number"')
        if at >= 0:
            self._sequence = payload[at : at + 48]

    @property
    def finished(self) -> bool:
        """Whether the stream had said its last word: its end, however it came, is an end."""
        return self._finished or (
            not self._typed and _DONE.search(_from_its_line(self._tail[-_TAIL_BYTES:])) is not None
        )

    def failure(self) -> Failure | None:
        """What the engine said in its last words, where that was an error; asked once, at the end (HO02)."""
        words = self._before + self._last
        if b"error" not in words:
            return None
        for match in _ERROR_LINE.finditer(words):
            failure = failure_of(match.group(1))
            if failure is not None:
                return failure
        return None

    def interruption(self, kind: Kind, message: str) -> bytes:
        """The error event, on its own: an event left open is closed by a blank line first."""
        tail = self._tail[-_TAIL_BYTES:]
        if not tail or tail.endswith(_BLANK):
            closing = b""
        elif tail.endswith(b"\n"):
            closing = b"\n"
        else:
            # Also after a lone CR, which a following LF would only complete.
            closing = b"\n\n"
        return closing + self._event(kind, message)

    def _event(self, kind: Kind, message: str) -> bytes:
        match self._dialect:
            case Dialect.CHAT:
                return b"data: " + body(kind, message) + b"\n\n"
            case Dialect.RESPONSES:
                seen = _SEQUENCE.match(self._sequence) if self._sequence is not None else None
                event = {
                    "type": "error",
                    "sequence_number": 0 if seen is None else int(seen.group(1)) + 1,
                    "code": kind.code,
                    "message": message,
                    "param": None,
                }
                return b"event: error\ndata: " + _json(event) + b"\n\n"
            case Dialect.MESSAGES:
                told = {"type": "error", "error": {"type": "api_error", "message": f"{kind.code}: {message}"}}
                return b"event: error\ndata: " + _json(told) + b"\n\n"
