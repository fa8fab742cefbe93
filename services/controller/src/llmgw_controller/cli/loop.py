"""One event loop for all that a command asks: gRPC's poller stays with the loop that it met first, and when
that one is closed it cries out in the middle of a page."""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_own = threading.local()


def run(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on the loop of this thread, which lives until the program ends."""
    runner: asyncio.Runner | None = getattr(_own, "runner", None)
    if runner is None:
        _own.runner = runner = asyncio.Runner()
        atexit.register(runner.close)
    return runner.run(work)
