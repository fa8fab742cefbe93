"""Heads that were read before: what was read once need not be read again.

A client says the same head with every request, and an engine with every answer; between two of them
only the length of the body differs, and the date. llhttp reads each head the first time, and whatever it
made of those bytes is what the same bytes mean the next time, so a request can mean nothing here that it
does not mean there. Kept are only heads of whole messages that came in one read, whose one varying part is
the digits of `content-length`; everything else goes to the parser, always.

Nothing that is kept is ever changed: who adds a line to a head makes a list of its own.
"""

from typing import Final

from llmgw_router.core.routes import HOT

#: Longer heads are read each time, and no more are kept at once: a few megabytes at most.
MOST_HEAD_BYTES: Final = 2048
MOST: Final = 1024

_END: Final = b"\r\n\r\n"
_MARK: Final = b"ength: "
_FIELD: Final = b"\r\ncontent-length: "
#: More digits than any body we take has.
_MOST_DIGITS: Final = 9


#: The bytes of a head before the digits of its length, and behind them to its end.
Around = tuple[bytes, bytes]


class RequestHead:
    """What llhttp and the client connection made of a request's head."""

    __slots__ = (
        "after",
        "before",
        "block",
        "entry",
        "head",
        "host",
        "lacks",
        "low",
        "method",
        "private",
        "size",
        "url",
    )

    def __init__(
        self,
        around: Around,
        method: bytes,
        url: bytes,
        host: bytes | None,
        head: list[bytes],
        private: list[bytes] | None,
    ) -> None:
        self.before, self.after = around
        #: Bytes of the head, less the digits of its length and its end.
        self.size = len(self.before) + len(self.after) - len(_END)
        self.method = method
        self.url = url
        #: What the target stands for, if it is written as the table of routes writes it.
        self.entry = HOT.get(url)
        self.host = host
        self.head = head
        self.private = private
        #: `head` as it travels on.
        self.block = b"\r\n".join(head) + b"\r\n" if head else b""
        #: The same in small letters, for who looks for a name.
        self.low = self.block.lower()
        #: A name that was looked for in vain, colon included; b"": none was.
        self.lacks = b""


class AnswerHead:
    """The same of an answer's."""

    __slots__ = (
        "accel",
        "after",
        "before",
        "cache",
        "content_type",
        "encoding",
        "head",
        "location",
        "prefix",
        "status",
    )

    def __init__(
        self,
        around: Around,
        status: int,
        head: list[bytes],
        content_type: bytes | None,
        encoding: bytes | None,
        cache: bytes | None,
        accel: bytes | None,
        location: bytes | None,
    ) -> None:
        self.before, self.after = around
        self.status = status
        self.head = head
        self.content_type = content_type
        self.encoding = encoding
        self.cache = cache
        self.accel = accel
        self.location = location
        #: As a client is sent it, up to where its own parts begin; b"": not made yet.
        self.prefix = b""


def split(data: bytes) -> tuple[Around, bytes] | None:
    """One whole message: its head around the digits of its length, and its body. None: `data` is not that,
    or not so plainly that it can be told."""
    end = data.find(_END, 0, MOST_HEAD_BYTES)
    if end < 0:
        return None
    at = data.find(_MARK, 0, end)
    if at < 0:
        return None
    at += len(_MARK)
    stop = data.find(b"\r", at, end + 2)
    digits = data[at:stop]
    if not digits.isdigit() or len(digits) > _MOST_DIGITS or len(data) - end - len(_END) != int(digits):
        return None
    return (data[:at], data[stop : end + len(_END)]), data[end + len(_END) :]


def again(known: RequestHead | AnswerHead, data: bytes) -> bytes | None:
    """The body of a message with this very head but for its length; None: it is not that.

    What `split` would find and the table with it, where the same connection says the same again: the length
    follows from the size of the whole, so that two comparisons do for two searches."""
    before, after = known.before, known.after
    at = len(before)
    if data[:at] != before:
        return None
    rest = len(data) - at - len(after)
    width = len(str(rest))
    size = rest - width
    digits = b"%d" % size
    if len(digits) != width:
        # Its digits are one fewer than those of itself and them.
        size += 1
        digits = b"%d" % size
        if len(digits) != width - 1:
            return None
    begin = len(data) - size
    return data[begin:] if data[at:begin] == digits + after else None


def left_out_length(around: Around) -> bool:
    """Whether the digits that `split` left out are those of `content-length` itself."""
    return around[0][-len(_FIELD) :].lower() == _FIELD


def keep(known: "dict[Around, RequestHead] | dict[Around, AnswerHead]", around: Around, made: object) -> None:
    """Remember one; when there are too many, all are forgotten, which costs each its next reading."""
    if len(known) >= MOST:
        known.clear()
    known[around] = made  # type: ignore[assignment]
