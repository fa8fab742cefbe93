"""Connections to upstreams and registries that say one thing when asked one thing.

The HTTP library queues every interim answer (1xx) and reads them in turn without giving way: a server that
sends them without end would stop this process. Here they are dropped as they come, and counted; nobody asks
for any.
"""

import asyncio
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

#: Before a final answer. A server sends none, or one or two of 103 (Early Hints).
INTERIM_MOST = 16


class _Line(ResponseHandler):
    """Counts since the request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0
        self._answered = self._cut = False

    def set_response_params(self, **params: Any) -> None:
        """Called for each request."""
        self._interim, self._answered = 0, False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Not when it was cut: what the transport had read before that still comes."""
        if not self._cut:
            super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """One head that came."""
        code = data[0].code
        if self._cut:
            return
        if self._answered:
            self._cut_off("more than one answer")
        elif 100 <= code < 200 and code != 101:
            self._interim += 1
            if self._interim > INTERIM_MOST:
                self._cut_off(f"more than {INTERIM_MOST} interim answers (1xx) and none that is final")
        else:
            self._answered = True
            super().feed_data(data, size)

    def _cut_off(self, why: str) -> None:
        self._cut = True
        self.force_close()
        if not self._answered:
            self.set_exception(aiohttp.ClientConnectionError(f"it sent {why}"))
        if self.transport is not None:
            self.transport.abort()


def connector(*, limit: int) -> aiohttp.TCPConnector:
    """`limit`: of connections at one time; 0: none."""
    made = aiohttp.TCPConnector(limit=limit)
    # The library has no public way to say what a connection is made of.
    made._factory = cast("partial[ResponseHandler]", partial(_Line, loop=asyncio.get_running_loop()))
    return made
