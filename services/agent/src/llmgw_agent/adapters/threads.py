"""Blocking work on a thread that does not outlive whoever waits for it."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def to_its_end(action: Callable[[*Ts], T], *args: *Ts, stop: threading.Event | None = None) -> T:
    """Run `action` on a thread; a cancelled caller is kept until it has ended, and `stop` is set then.

    A fetch that is over must not leave a thread behind that writes into files being removed or published."""
    work = asyncio.ensure_future(asyncio.to_thread(action, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        while not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                continue  # cancelled once more; the first time counts
        if not work.cancelled():
            work.exception()  # of no interest any more
        raise
