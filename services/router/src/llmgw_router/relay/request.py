"""A request as the client's parser has read it, and the head under which it travels on."""

from typing import TYPE_CHECKING

from llmgw_router.core.errors import Kind
from llmgw_router.core.heads import block, named_by_connection, without
from llmgw_router.core.paths import split
from llmgw_router.core.routes import HELD, HOT, Dialect, Route, find

if TYPE_CHECKING:
    from llmgw_router.core.keys import KeyRow
    from llmgw_router.relay.client import ClientConnection
    from llmgw_router.relay.endpoint import EngineEndpoint
    from llmgw_router.relay.hub import Hub
    from llmgw_router.relay.known_heads import RequestHead


class Request:
    """Filled in by ClientConnection while the request arrives; read by Exchange once it is whole."""

    __slots__ = (
        "asked_heartbeat",
        "asked_profile",
        "body",
        "body_bytes",
        "client",
        "connection_values",
        "content_encoding",
        "dialect",
        "entry",
        "expects",
        "has_body",
        "head",
        "host",
        "http10",
        "hub",
        "keep",
        "key",
        "known",
        "method",
        "origin",
        "path",
        "private",
        "query",
        "refusal",
        "request_id",
        "traceparent",
        "transfer",
        "url",
    )

    def __init__(self, client: "ClientConnection") -> None:
        self.client = client
        self.hub: Hub = client.hub
        self.method = b""
        #: The request target as it came; `path` and `query` are its normal form.
        self.url = b""
        self.path = b""
        self.query = b""
        #: The path's line in the table of routes; None: not for engines.
        self.entry: Route | None = None
        #: Of `entry`.
        self.dialect: Dialect | None = None
        #: "Name: value" lines that pass to anybody ...
        self.head: list[bytes] = []
        #: ... and those that only the cold application may see.
        self.private: list[bytes] | None = None
        self.host: bytes | None = None
        #: The client's own if it was sane, else ours; never None once the exchange is routed.
        self.request_id: bytes | None = None
        #: The client's own.
        self.traceparent: bytes | None = None
        #: The routing profile that the client names.
        self.asked_profile: bytes | None = None
        #: The client wants to be told that it waits.
        self.asked_heartbeat = False
        #: What `access-control-allow-origin` is to say; None: nothing.
        self.origin: bytes | None = None
        self.connection_values: list[bytes] | None = None
        self.content_encoding: bytes | None = None
        self.expects: bytes | None = None
        self.transfer: bytes | None = None
        self.has_body = False
        #: Kept as it grew where it is big, so that no file is in memory twice (W47).
        self.body: bytes | bytearray = b""
        #: While arriving: announced, then counted.
        self.body_bytes = 0
        #: Its head was read before; None: it was read for this request.
        self.known: RequestHead | None = None
        #: Who asks; None where no key is asked for.
        self.key: KeyRow | None = None
        #: The client may send another request on this connection afterwards.
        self.keep = True
        self.http10 = False
        #: Decided while it arrived; it is answered in its turn.
        self.refusal: tuple[Kind, str] | None = None

    def normalise(self) -> None:
        """Find the one meaning of the target, and drop what Connection names. Raises BadPath."""
        if self.entry is not None:
            # With its head, which was read before and names nothing.
            return
        entry = HOT.get(self.url)
        if entry is not None:
            self.path = self.url
        else:
            self.path, self.query = split(self.url)
            entry = find(self.path)
        if entry is not None:
            self.entry = entry
            self.dialect = entry.dialect
        if self.connection_values is not None:
            names = named_by_connection(self.connection_values)
            if names:
                self.head = without(self.head, names)
                if self.private:
                    self.private = without(self.private, names)

    def engine_head(self, endpoint: "EngineEndpoint") -> bytes:
        """One framing header, one id, our credential; nothing of the caller's connection or secrets."""
        target = self.path + self.query if self.query else self.path
        entry = self.entry
        assert entry is not None
        if entry.content is HELD:
            return self._held_head(endpoint.request_lines(self.method, target))
        known = self.known
        return b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            endpoint.head_prefix(target),
            known.block if known is not None and self.head is known.head else block(self.head),
            self.request_id or b"",
            len(self.body),
        )

    def _held_head(self, prefix: bytes) -> bytes:
        length = b"content-length: %d\r\n" % len(self.body)
        return b"%b%bx-request-id: %b\r\n%b\r\n" % (
            prefix,
            block(self.head),
            self.request_id or b"",
            length if self.has_body or self.method == b"POST" else b"",
        )

    def cold_head(self) -> bytes:
        """Cookies and keys travel here, and who asked: the cold application decides about both."""
        lines = [
            b"%b %b%b HTTP/1.1" % (self.method, self.path, self.query),
            b"host: " + (self.host or b"localhost"),
            b"x-request-id: " + (self.request_id or b""),
            b"x-llmgw-peer: " + self.client.peer,
        ]
        if self.key is not None:
            lines.append(b"x-llmgw-key: " + self.key.key_id.encode())
        if self.has_body or self.method in (b"POST", b"PUT", b"PATCH"):
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n" + block([*self.head, *(self.private or ())]) + b"\r\n"
