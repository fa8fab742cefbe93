"""How llmgwctl reaches the leader: the addresses it was given in turn, then whom a standby names."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio

from llmgw.v1 import operator_pb2_grpc
from llmgw_kit.addresses import HostPort, parse_host_port
from llmgw_kit.errors import LlmgwError, NotLeader, Unavailable
from llmgw_kit.rpc import channel, close_quietly, error_from

#: For one address: an operator at night will not wait longer before the next is tried.
CONNECT_TIMEOUT_S = 3.0

T = TypeVar("T")
# The stubs of grpc.aio exist for the type checker only.
Call = Callable[["operator_pb2_grpc.OperatorServiceAsyncStub"], Awaitable[T]]


class NoController(LlmgwError):
    """Nobody leads or nobody answers: exit status 2."""

    code_default = "no_controller"


async def call_leader(addresses: tuple[HostPort, ...], call: Call[T]) -> T:
    """Make one call at the leader. Raises NoController when none can be found, else what it answered."""
    tried: dict[HostPort, str] = {}
    waiting = list(addresses)
    while waiting:
        address = waiting.pop(0)
        if address in tried:
            continue
        try:
            return await call_one(address, call)
        except NotLeader as e:
            tried[address] = "stands by, and knows no leader"
            if e.leader_address:
                tried[address] = f"stands by for {e.leader_address}"
                waiting.insert(0, parse_host_port(e.leader_address, what="leader address"))
        except Unavailable as e:
            if e.code not in ("unreachable", "timed_out"):
                raise
            # Of a call that began, the text has its own story, such as that no answer came in time.
            tried[address] = "timed out" if e.code == "timed_out" else e.text.removeprefix(f"{address} ")
    story = ", ".join(f"{address} {what}" for address, what in tried.items())
    if any(what.startswith("stands by") for what in tried.values()):
        text = f"no controller leads right now ({story})"
        steps = ["a standby takes over within the lease's ttl (10 s unless set otherwise): try again"]
    else:
        text = f"no controller answered in {CONNECT_TIMEOUT_S:.0f} s ({story})"
        steps = [
            "engines and routers go on without one; on a node, what runs there: llmgw-agent ps",
            "try: --controller HOST:PORT[,HOST:PORT]",
            "try: llmgwctl doctor",
        ]
    raise NoController(text, next_steps=steps)


async def call_one(address: HostPort, call: Call[T]) -> T:
    """Make one call at this address. Raises Unavailable (unreachable, timed_out), and what it answered."""
    link = channel(address)
    try:
        try:
            await asyncio.wait_for(connected(link), CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable(f"{address} timed out", code="timed_out") from None
        try:
            return await call(operator_pb2_grpc.OperatorServiceStub(link))
        except grpc.aio.AioRpcError as e:
            raise error_from(e, peer=str(address)) from None
    finally:
        await close_quietly(link)


async def connected(link: grpc.aio.Channel) -> None:
    """Return once the channel is up; a refused connection raises at once instead of being retried."""
    state = link.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise Unavailable("refused", code="unreachable")
        await link.wait_for_state_change(state)
        state = link.get_state(try_to_connect=True)
