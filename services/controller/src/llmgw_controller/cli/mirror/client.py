"""How llmgwctl reaches a mirror: the addresses it was given, in turn. Mirrors over one database know the
same, so the first that answers will do."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from llmgw.v1 import mirror_pb2_grpc
from llmgw_controller.cli import loop
from llmgw_controller.cli.client import CONNECT_TIMEOUT_S, connected
from llmgw_controller.cli.session import Asking, Session
from llmgw_controller.cli.stream import each
from llmgw_kit.errors import InvalidRequest, Unavailable
from llmgw_kit.rpc import channel, close_quietly, error_from
from llmgw_kit.tls import TlsFiles
from llmgw_kit.tls_watch import Material, Side, WatchedTls

if TYPE_CHECKING:
    from pathlib import Path

    from llmgw_kit.addresses import HostPort

T = TypeVar("T")
# The stubs of grpc.aio exist for the type checker only.
MirrorCall = Callable[["mirror_pb2_grpc.MirrorServiceAsyncStub"], Awaitable[T]]

#: A question that needs no registry and moves no bytes.
TIMEOUT_S = 10
#: The registry is asked behind it, perhaps for many pages.
REGISTRY_TIMEOUT_S = 60


@dataclass(frozen=True)
class Tls:
    """What is shown to a mirror and trusted of it. `name`: what its certificate calls it, where that is not
    the host; None: the host."""

    shown: Material
    name: str | None


def tls_of(ca: Path | None, cert: Path | None, key: Path | None, name: str | None) -> Tls | None:
    """None: plaintext, for a trusted network. Raises InvalidRequest where the files do not fit together."""
    files = TlsFiles(cert, key, ca)
    if not files:
        if name is not None:
            raise InvalidRequest("--tls-name goes with --tls-ca", next_steps=["give the authority to trust"])
        return None
    return Tls(WatchedTls(files, Side.CLIENT, what="TLS to the mirror").now, name)


class MirrorSession(Asking["mirror_pb2_grpc.MirrorServiceAsyncStub"]):
    """As the controller's session, of which it has the flags; its calls go to a mirror."""

    def __init__(self, mirrors: tuple[HostPort, ...], controller: Session, *, tls: Tls | None = None) -> None:
        super().__init__(
            mirrors, output=controller.output, ascii_only=controller.ascii_only, watch=controller.watch
        )
        self._tls = tls
        #: Asked for what the mirror cannot know.
        self.controller = controller

    def look(self, call: MirrorCall[T]) -> T:
        """May be repeated. Raises Unavailable where no mirror answers, else what it said."""
        return loop.run(call_mirror(self.addresses, call, tls=self._tls))

    def follow(
        self, call: Callable[[mirror_pb2_grpc.MirrorServiceAsyncStub], AsyncIterable[T]],
        take: Callable[[T], None], *, again: str,
    ) -> None:  # fmt: skip
        """A call that goes on: each message to `take`. `again` says how to go on when it broke off."""
        self.only_once()
        self.look(lambda stub: each(call(stub), take, peer="the mirror", again=again))


async def call_mirror(addresses: tuple[HostPort, ...], call: MirrorCall[T], *, tls: Tls | None = None) -> T:
    """One call at the first mirror that can be reached. Raises Unavailable (no_mirror), and what it said."""
    tried: list[str] = []
    for address in addresses:
        link = channel(address, tls=tls.shown, name=tls.name) if tls is not None else channel(address)
        try:
            await asyncio.wait_for(connected(link), CONNECT_TIMEOUT_S)
        except TimeoutError:
            tried.append(f"{address} timed out")
        except Unavailable as e:
            # gRPC does not tell a refused connection from a handshake that failed.
            tried.append(f"{address} {e.text}" + (", or its certificate was not trusted" if tls else ""))
        else:
            # From here on another mirror is not asked by itself: what was begun would be begun twice.
            try:
                return await call(mirror_pb2_grpc.MirrorServiceStub(link))
            except grpc.aio.AioRpcError as e:
                raise error_from(e, peer=f"mirror {address}") from None
        finally:
            await close_quietly(link)
    raise Unavailable(
        f"no mirror answered in {CONNECT_TIMEOUT_S:.0f} s ({', '.join(tried)})",
        code="no_mirror",
        next_steps=[
            "what runs goes on, and nodes that hold their weights start without one",
            "try: --mirror HOST:PORT[,HOST:PORT], or LLMGW_MIRROR in the environment",
            "one that speaks TLS wants --tls-ca, and --tls-cert with --tls-key where it asks for one",
        ],
    )


def asked_by() -> str:
    """For the mirror's history: who typed this, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
