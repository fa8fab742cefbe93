"""How llmgwctl reaches a mirror: the addresses it was given, in turn. Mirrors over one database know the
same, so the first that answers will do."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from llmgw.v1 import mirror_pb2_grpc
from llmgw_controller.cli.client import CONNECT_TIMEOUT_S, connected
from llmgw_controller.cli.session import Asking, Session
from llmgw_controller.cli.stream import each
from llmgw_kit.errors import Unavailable
from llmgw_kit.rpc import channel, close_quietly, error_from

if TYPE_CHECKING:
    from llmgw_kit.addresses import HostPort

T = TypeVar("T")
# The stubs of grpc.aio exist for the type checker only.
MirrorCall = Callable[["mirror_pb2_grpc.MirrorServiceAsyncStub"], Awaitable[T]]

#: A question that needs no registry and moves no bytes.
TIMEOUT_S = 10
#: The registry is asked behind it, perhaps for many pages.
REGISTRY_TIMEOUT_S = 60


class MirrorSession(Asking["mirror_pb2_grpc.MirrorServiceAsyncStub"]):
    """As the controller's session, of which it has the flags; its calls go to a mirror."""

    def __init__(self, mirrors: tuple[HostPort, ...], controller: Session) -> None:
        super().__init__(
            mirrors, output=controller.output, ascii_only=controller.ascii_only, watch=controller.watch
        )
        #: Asked for what the mirror cannot know.
        self.controller = controller

    def look(self, call: MirrorCall[T]) -> T:
        """May be repeated. Raises Unavailable where no mirror answers, else what it said."""
        return asyncio.run(call_mirror(self.addresses, call))

    def follow(
        self, call: Callable[[mirror_pb2_grpc.MirrorServiceAsyncStub], AsyncIterable[T]],
        take: Callable[[T], None], *, again: str,
    ) -> None:  # fmt: skip
        """A call that goes on: each message to `take`. `again` says how to go on when it broke off."""
        self.only_once()
        self.look(lambda stub: each(call(stub), take, peer="the mirror", again=again))


async def call_mirror(addresses: tuple[HostPort, ...], call: MirrorCall[T]) -> T:
    """One call at the first mirror that can be reached. Raises Unavailable (no_mirror), and what it said."""
    tried: list[str] = []
    for address in addresses:
        link = channel(address)
        try:
            await asyncio.wait_for(connected(link), CONNECT_TIMEOUT_S)
        except TimeoutError:
            tried.append(f"{address} timed out")
        except Unavailable as e:
            tried.append(f"{address} {e.text}")
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
