"""Usage in an event stream, read by read: noted as it passes, and our own event taken out (W21, HO17).

The engine was asked for one event more than the client wants: the one without choices right before
`[DONE]`. It is held back until what follows shows that it is that one. What arrives in whole events, as
nearly always, costs two searches; an event that arrives in pieces is held only while it may be ours.
"""

import re

from llmgw_router.core.routes import Dialect
from llmgw_router.core.usage import Told, has_usage, merged, told_each, told_last

_ENDS = re.compile(rb"\n\n|\r\n\r\n")
_EXTRA = re.compile(rb'"choices"[ \t]*:[ \t]*\[[ \t]*\]')
#: A beginning that no event of ours has.
_OTHER = re.compile(rb'"choices"[ \t]*:[ \t]*\[[ \t]*[^\] \t]')
_DATA = b"data:"
_DONE = re.compile(rb"data: ?\[DONE\]")
#: An event that is longer is not ours, and of one that is not ours so much of the end is kept.
_LONGEST = 8 * 1024

#: What stands once in every event that carries output, about a token each.
_MARKS: dict[Dialect, bytes] = {
    Dialect.CHAT: _DATA,
    Dialect.RESPONSES: b'.delta"',
    Dialect.MESSAGES: b'content_block_delta"',
}


class StreamUsage:
    """Of one answer. Call `part` with each read in order, then `end`, however it ends."""

    __slots__ = (
        "_dialect",
        "_extra",
        "_last",
        "_leaked",
        "_open",
        "_told",
        "between",
        "mark",
        "marks",
        "removing",
    )

    def __init__(self, dialect: Dialect, *, removing: bool) -> None:
        self._dialect = dialect
        #: We asked for an event that the client did not.
        self.removing = removing
        #: What is counted, about one a token; and how often it came, `[DONE]` with it.
        self.mark = _MARKS[dialect]
        self.marks = 0
        #: Nothing is open and nothing held: what comes next begins an event.
        self.between = True
        #: An event whose end has not come, and whether it has been passed on as far as it has.
        self._open = b""
        self._leaked = False
        #: A whole event that is ours if `[DONE]` follows.
        self._extra = b""
        #: Whole events in which usage was told last.
        self._last: bytes | None = None
        self._told: Told | None = None

    def part(self, payload: bytes) -> bytes:
        """What of it the client is to have now."""
        self.marks += payload.count(self.mark)
        if self.between and payload.endswith(b"\n\n"):
            # Searched by `find`, which takes half the time of `in`.
            if payload.find(b'"usage"') < 0:
                return payload
            out = self._whole(payload)
        else:
            out = self._pieces(payload)
        self.between = not (self._open or self._extra)
        return out

    def end(self) -> bytes:
        """The engine says no more, for whatever reason: what is still held and not ours."""
        held, leaked = self._open, self._leaked
        self._open, self._leaked = b"", False
        if leaked or not self.removing:
            self._note(held)
            return b""
        rest = self._whole(held)
        self._extra = b""
        return rest

    def told(self) -> Told | None:
        """The engine's word, the last of it where it came more than once."""
        return self._told if self._last is None else told_last(self._last)

    # --- events

    def _whole(self, data: bytes, leaked: int = 0) -> bytes:
        """Of whole events those that the client is to have, less the first `leaked` bytes, which it has."""
        if not self.removing:
            self._note(data)
            return data
        kept: list[bytes] = []
        at = 0
        while at < len(data):
            found = _ENDS.search(data, at)
            end = len(data) if found is None else found.end()
            event = data[at:end]
            if leaked:
                # It has been judged: its beginning was not one of ours.
                self._note(event)
                kept.append(event[leaked:])
                leaked = 0
            elif _DONE.match(event):
                self._extra = b""
                kept.append(event)
            elif self._is_extra(event):
                self._note(event)
                kept.append(self._extra)
                self._extra = event
            else:
                if not event.startswith(b":"):
                    kept.append(self._extra)
                    self._extra = b""
                self._note(event)
                kept.append(event)
            at = end
        return b"".join(kept)

    def _is_extra(self, event: bytes) -> bool:
        return event.startswith(_DATA) and has_usage(event) and _EXTRA.search(event) is not None

    def _note(self, data: bytes) -> None:
        if b'"usage"' not in data or not has_usage(data):
            return
        if self._dialect is Dialect.MESSAGES:
            # The prompt is told at the beginning and the output at the end.
            for told in told_each(data):
                self._told = merged(self._told, told)
        else:
            self._last = data

    # --- pieces of events

    def _pieces(self, payload: bytes) -> bytes:
        before = len(self._open)
        data = self._open + payload
        cut = _last_end(data, max(0, before - 3))
        if not self.removing:
            self._note(data[:cut])
            self._open = data[cut:][-_LONGEST:]
            return payload
        out = b""
        if cut:
            out = self._whole(data[:cut], before if self._leaked else 0)
            self._leaked = False
            before = 0
        self._open = rest = data[cut:]
        if not rest:
            return out
        if self._leaked:
            self._open = rest[-_LONGEST:]
            return payload
        if self._may_be_ours(rest):
            return out
        self._leaked = True
        if not rest.startswith(b":"):
            out, self._extra = out + self._extra, b""
        return out + rest

    def _may_be_ours(self, begun: bytes) -> bool:
        if len(begun) < len(_DATA):
            return _DATA.startswith(begun)
        return begun.startswith(_DATA) and len(begun) <= _LONGEST and _OTHER.search(begun) is None


def _last_end(data: bytes, start: int) -> int:
    """Where the last blank line ends that ends at or after `start`; 0: there is none."""
    plain = data.rfind(b"\n\n", start)
    windows = data.rfind(b"\r\n\r\n", start)
    return max(plain + 2 if plain >= 0 else 0, windows + 4 if windows >= 0 else 0)
