"""The answer on its way to the client: its head once, then its bytes as they come, then its end."""

from typing import TYPE_CHECKING

from llmgw_router.core.events import EventTail
from llmgw_router.relay.answer import BY_CHUNKS, BY_CLOSE, BY_LENGTH, answer_head, framing_of, told_again
from llmgw_router.relay.cors import shown
from llmgw_router.relay.heartbeat import NEVER, go_on
from llmgw_router.relay.request import Request
from llmgw_router.relay.slots import COUNTER

if TYPE_CHECKING:
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.known_heads import AnswerHead
    from llmgw_router.relay.upstream import UpstreamConnection

_STREAMS = COUNTER["streams"]


class Relaying(Request):
    """What has been sent to the client so far, and the sending."""

    __slots__ = (
        "beat_at",
        "bytes_out",
        "chunks",
        "code",
        "committed",
        "first_ns",
        "framing",
        "head_sent",
        "status",
        "tail",
    )

    def __init__(self, client: "ClientConnection") -> None:
        Request.__init__(self, client)
        #: The client has seen a status: there is no other answer any more.
        self.head_sent = False
        #: A status of ours has left, so that a client that waits could be told so; no answer has.
        self.committed = False
        #: When to tell it again.
        self.beat_at = NEVER
        #: Set for event streams that we can speak in.
        self.tail: EventTail | None = None
        #: As sent; 499 when the client left; 0 before.
        self.status = 0
        #: Label of our own refusal or interruption.
        self.code: str | None = None
        #: Of the body, without its framing.
        self.bytes_out = 0
        #: Reads of the answer's body that were passed on.
        self.chunks = 0
        #: When the first byte of the body was there; 0 before.
        self.first_ns = 0

    def start_answer(self, connection: "UpstreamConnection", payload: bytes, *, whole: bool) -> None:
        """Send the head with what there is of the body; `whole`: that is all of it."""
        if self.committed:
            go_on(self, connection, payload, whole=whole)
            return
        self.head_sent = True
        # From here on it is not sent again, and a stream may last for an hour.
        self.body = b""
        self.status = connection.status
        if (
            whole
            and connection.known is not None
            and self._said_before(connection.known, connection, payload)
        ):
            return
        self.framing = framing = framing_of(connection, http10=self.http10, whole=whole)
        if framing == BY_CLOSE or self.hub.draining:
            self.keep = False
        head = answer_head(
            connection,
            framing,
            request_id=self.request_id or b"",
            date=self.hub.date,
            keep=self.keep,
            http10=self.http10,
            cold=self.dialect is None,
            length=len(payload) if whole else None,
        )
        if self.origin is not None and (self.entry is not None or self.path[:4] == b"/v1/"):
            head = shown(head, self.origin)
        if connection.is_stream and self.dialect is not None:
            self.hub.counters[_STREAMS] += 1
            if connection.encoding is None:
                self.tail = EventTail(self.dialect)
                self.tail.note(payload)
        self.bytes_out += len(payload)
        self.chunks = 1
        if self.method == b"HEAD":
            self.client.transport.write(head)
        elif framing == BY_CHUNKS:
            if not payload:
                self.client.transport.write(head + b"0\r\n\r\n" if whole else head)
            else:
                end = b"\r\n0\r\n\r\n" if whole else b"\r\n"
                self.client.transport.write(b"%b%x\r\n%b%b" % (head, len(payload), payload, end))
        else:
            self.client.transport.write(head + payload)

    def _said_before(self, known: "AnswerHead", connection: "UpstreamConnection", payload: bytes) -> bool:
        """Answer in one piece, with a head that has left before. False: it has to be made anew, since the
        answer was changed or this client is to be told something else."""
        if (
            connection.head is not known.head
            or connection.is_stream
            or self.http10
            or not self.keep
            or self.dialect is None
            or self.origin is not None
            or self.hub.draining
            or self.method == b"HEAD"
        ):
            return False
        self.framing = BY_LENGTH
        size = len(payload)
        self.bytes_out += size
        self.chunks = 1
        self.client.transport.write(
            b"%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n\r\n%b"
            % (
                known.prefix or told_again(connection, known),
                size,
                self.request_id or b"",
                self.hub.date,
                payload,
            )
        )
        return True

    def pass_on(self, payload: bytes, *, last: bool = False) -> None:
        """Send a part of the body; with `last` also the end of its framing."""
        transport = self.client.transport
        if payload:
            self.bytes_out += len(payload)
            self.chunks += 1
            if self.tail is not None:
                self.tail.note(payload)
            if self.framing == BY_CHUNKS:
                transport.write(
                    b"%x\r\n%b\r\n0\r\n\r\n" % (len(payload), payload)
                    if last
                    else b"%x\r\n%b\r\n" % (len(payload), payload)
                )
            else:
                transport.write(payload)
        elif last and self.framing == BY_CHUNKS:
            transport.write(b"0\r\n\r\n")
