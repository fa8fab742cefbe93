"""Calls that go on: each message handed on as it comes, and a clear end when the controller goes away."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc.aio

from llmgw_kit.errors import NotLeader, Unavailable
from llmgw_kit.rpc import error_from

T = TypeVar("T")


async def each(
    call: Any, take: Callable[[T], None], *, peer: str = "the controller",
    again: str = "another takes over within the lease's ttl: type it again",
) -> None:  # fmt: skip
    """Until the call ends. `take` may block: nothing more is read meanwhile, and the `peer` waits. `again`:
    what to type when it broke off in the middle.

    Before the first message a standby's refusal goes up as it is, so that its leader is asked. After it
    nothing is asked again by itself: what was shown would be shown twice, what was begun begun twice."""
    begun = False
    try:
        async for message in call:
            begun = True
            take(message)
    except grpc.aio.AioRpcError as e:
        error = error_from(e, peer=peer)
        if not begun or not (isinstance(error, NotLeader) or error.code == "unreachable"):
            raise
        raise Unavailable(
            f"{peer} went away in the middle", code="interrupted", next_steps=[again],
        ) from None  # fmt: skip
    finally:
        call.cancel()
