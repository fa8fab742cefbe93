"""Requests that offer another protocol, and are answered in this one (RFC 9110 section 7.8).

Java's HttpClient and `curl --http2` offer h2c with every first request. llhttp ends such a message behind its
head, with no regard to a body. So another parser goes on behind it, which is given the same framing first.
"""

from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from llmgw_router.relay.arriving import Arriving


def may_be_ignored(offered: bytes) -> bool:
    """Whether a client that offers these goes on in HTTP/1.1 when nobody takes them up.

    One of websockets would not."""
    names = [name.partition(b"/")[0].strip().lower() for name in offered.split(b",")]
    return b"websocket" not in names


class _GoingOn:
    """A parser's callbacks: the head that it is given first is ours, and what follows is the client's."""

    def __init__(self, client: "Arriving") -> None:
        self._client = client
        self.ours = True
        self.on_body = client.on_body
        self.on_message_complete = client.on_message_complete

    def on_message_begin(self) -> None:
        if not self.ours:
            self._client.on_message_begin()

    def on_url(self, part: bytes) -> None:
        if not self.ours:
            self._client.on_url(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.ours:
            self._client.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.ours:
            self._client.on_headers_complete()


def go_on_behind(client: "Arriving", version: str, *, keep: bool, length: int | None, chunked: bool) -> None:
    """Give the client one that reads the body of the request whose head was read, and the requests behind it.

    `length` and `chunked`: as that head has said. A request without a body is completed by this."""
    callbacks = _GoingOn(client)
    parser = client.parser = httptools.HttpRequestParser(callbacks)
    framing = b"transfer-encoding: chunked\r\n" if chunked else b""
    if length is not None:
        framing += b"content-length: %d\r\n" % length
    parser.feed_data(
        b"POST / HTTP/%b\r\nconnection: %b\r\n%b\r\n"
        % (version.encode(), b"keep-alive" if keep else b"close", framing)
    )
    callbacks.ours = False
