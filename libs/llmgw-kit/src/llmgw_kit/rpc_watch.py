"""Whether a peer's gRPC can be reached: looked at in the background, told when that changes, and why not.

A peer that is away is no reason not to start, and not to be passed over in silence either. What gRPC says of
a failed connection is vague (expired, missing and plaintext all read "Socket closed"), so after a failure the
steps are gone one by one, and the first that fails is the reason.
"""

from __future__ import annotations  # grpc.aio's generics exist in its type stubs only

import asyncio
import logging
import os
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from llmgw_kit import rpc
from llmgw_kit.addresses import HostPort
from llmgw_kit.clock import Clock
from llmgw_kit.tls_watch import Material, WatchedTls

log = logging.getLogger(__name__)

#: Between two looks: while it answers, and at first and at most while it does not.
WELL_S, FIRST_S, MOST_S = 15.0, 1.0, 30.0
#: While the reason stays the same, so many looks pass between two warnings: some five minutes.
_REMIND = 10
_STEP_S = 5.0


@dataclass(frozen=True)
class Trouble:
    """Why it cannot be reached. `since`: Unix seconds."""

    why: str
    since: float


class PeerWatch:
    """`what` names the peer in every line. Call `look` for one look, `run` to look for ever."""

    def __init__(
        self, address: HostPort, *, what: str, clock: Clock, tls: WatchedTls | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        self._address = address
        self._what = what
        self._clock = clock
        self._tls = tls
        self._name = name
        #: None before the first look; afterwards whether the last one was answered.
        self.reachable: bool | None = None
        self.trouble: Trouble | None = None
        self._in_a_row = 0

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(self._next_s)

    async def look(self) -> None:
        """Ask once, and tell what changed."""
        material = self._tls.now if self._tls is not None else None
        why = await self._asked(material)
        now = self._clock.unix_s()
        if why is None:
            if self.trouble is not None:
                away_s = now - self.trouble.since
                log.info("%s at %s is reached again, after %.0f s", self._what, self._address, away_s)
            self.reachable, self.trouble, self._in_a_row = True, None, 0
            return
        before = self.trouble
        self.reachable, self.trouble = False, Trouble(why, before.since if before is not None else now)
        self._in_a_row += 1
        if before is None or before.why != why or self._in_a_row % _REMIND == 0:
            since = datetime.fromtimestamp(self.trouble.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            log.warning(
                "%s at %s cannot be reached: %s; since %s, next try in %.0f s",
                self._what, self._address, why, since, self._next_s,
            )  # fmt: skip

    @property
    def _next_s(self) -> float:
        if self._in_a_row == 0:
            return WELL_S
        return float(min(MOST_S, FIRST_S * 2 ** min(self._in_a_row - 1, 10)))

    async def _asked(self, material: Material | None) -> str | None:
        """None: it answered."""
        # A channel of its own each time: one that is kept backs off by itself, and keeps its certificate.
        channel = rpc.channel(self._address, tls=material, name=self._name)
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its calls are in no stub
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=_STEP_S)
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None  # it answers, and knows no health service
            said = e.details() or e.code().name.lower()
            return await why_not(self._address, tls=material, name=self._name) or said
        finally:
            await rpc.close_quietly(channel)
        return None


async def why_not(address: HostPort, *, tls: Material | None, name: str | None) -> str | None:
    """The first step towards this peer that fails, in words; None: all of them went well."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_STEP_S):
            await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as e:
        return f"{address.host} cannot be resolved: {(e.strerror or str(e)).lower()}"
    except TimeoutError:
        return f"{address.host} cannot be resolved within {_STEP_S:g} s"
    try:
        async with asyncio.timeout(_STEP_S):
            _, plain = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return f"no connection within {_STEP_S:g} s"
    except OSError as e:
        return f"no connection: {_words(e)}"
    plain.transport.abort()
    return None if tls is None else await _handshake(address, tls, name)


async def _handshake(address: HostPort, tls: Material, name: str | None) -> str | None:
    try:
        async with asyncio.timeout(_STEP_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=tls.context, server_hostname=name or address.host
            )
    except ssl.SSLCertVerificationError as e:
        return f"its certificate is not accepted: {e.verify_message}"
    except ssl.SSLError as e:
        if e.reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"):
            return "it does not speak TLS"
        return f"TLS: {(e.reason or str(e)).lower().replace('_', ' ')}"
    except TimeoutError:
        return f"no TLS handshake within {_STEP_S:g} s"
    except OSError as e:
        return f"it ended the TLS handshake: {_words(e)}"
    # With TLS 1.3 our certificate is judged after the handshake, when we think that all is well.
    try:
        async with asyncio.timeout(1.0):
            ended = await reader.read(1) == b""
        return "it does not accept our certificate" if ended else None
    except ssl.SSLError as e:
        return f"it does not accept our certificate: {(e.reason or str(e)).lower().replace('_', ' ')}"
    except OSError:
        return "it does not accept our certificate"
    except TimeoutError:
        return None
    finally:
        writer.transport.abort()


def _words(error: OSError) -> str:
    # The event loop puts the address where the system's word would be, and joins those of several addresses.
    return (os.strerror(error.errno) if error.errno else str(error) or type(error).__name__).lower()
