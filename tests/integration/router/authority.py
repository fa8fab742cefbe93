"""Engines with certificates of a test's own authority."""

import asyncio
import ssl
from pathlib import Path

from llmgw_kit.testing.authority import Authority, Pair

from .upstream import Upstream

__all__ = ["Authority", "Pair", "TlsUpstream"]


class TlsUpstream(Upstream):
    """A scripted engine behind TLS; with `asks_for` it wants a client's certificate of that authority."""

    pair: Pair
    asks_for: Path | None = None

    async def __aenter__(self) -> "TlsUpstream":
        self._tasks: set[asyncio.Task[None]] = set()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.asks_for)
        context.load_cert_chain(self.pair.cert, self.pair.key)
        if self.asks_for is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # TLS 1.3 tells a client without a certificate only after the handshake.
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self
