"""Heads that were read before: what was read once need not be read again.

A client says the same head with every request, and an engine with every answer; between two of them
only the length of the body differs, and the date. llhttp reads each head the first time, and whatever it
made of those bytes is what the same bytes mean the next time, so a request can mean nothing here that it
does not mean there. Kept are only heads of whole messages that came in one read, whose one varying part is
the digits of `content-length`; everything else goes to the parser, always.

Nothing that is kept is ever changed: who adds a line to a head makes a list of its own.
"""

from typing import Final

#: Longer heads are read each time, and no more are kept at once: a few megabytes at most.
MOST_HEAD_BYTES: Final = 2048
MOST: Final = 1024

_END: Final = b"\r\n\r\n"
_MARK: Final = b"ength: "
_FIELD: Final = b"\r\ncontent-length: "
#: More digits than any body we take has.
_MOST_DIGITS: Final = 9


class RequestHead:
    """What llhttp and the client connection made of a request's head."""

    __slots__ = ("block", "head", "host", "low", "method", "private", "url")

    def __init__(
        self, method: bytes, url: bytes, host: bytes | None, head: list[bytes], private: list[bytes] | None
    ) -> None:
        self.method = method
        self.url = url
        self.host = host
        self.head = head
        self.private = private
        #: `head` as it travels on.
        self.block = b"\r\n".join(head) + b"\r\n" if head else b""
        #: The same in small letters, for who looks for a name.
        self.low = self.block.lower()


class AnswerHead:
    """The same of an answer's."""

    __slots__ = ("accel", "cache", "content_type", "encoding", "head", "location", "prefix", "status")

    def __init__(
        self,
        status: int,
        head: list[bytes],
        content_type: bytes | None,
        encoding: bytes | None,
        cache: bytes | None,
        accel: bytes | None,
        location: bytes | None,
    ) -> None:
        self.status = status
        self.head = head
        self.content_type = content_type
        self.encoding = encoding
        self.cache = cache
        self.accel = accel
        self.location = location
        #: As a client is sent it, up to where its own parts begin; b"": not made yet.
        self.prefix = b""


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """One whole message: its head less the digits of its length, and its body. None: `data` is not that,
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
    return data[:at] + data[stop:end], data[end + len(_END) :]


def left_out_length(key: bytes) -> bool:
    """Whether the digits that `split` left out of this key are those of `content-length` itself."""
    at = key.find(_MARK) + len(_MARK)
    return key[max(0, at - len(_FIELD)) : at].lower() == _FIELD


def keep(known: "dict[bytes, RequestHead] | dict[bytes, AnswerHead]", key: bytes, made: object) -> None:
    """Remember one; when there are too many, all are forgotten, which costs each its next reading."""
    if len(known) >= MOST:
        known.clear()
    known[key] = made  # type: ignore[assignment]
