"""Bytes of request bodies that a worker has in its hands: those that arrive, and those that wait.

Numbers of requests bound no memory where one of them may be 64 MiB. Nothing is counted for small bodies as
they come and go: each sweep counts what is there, what comes in several reads is added meanwhile, and who
would be refused is only refused after counting anew.
"""

from math import inf
from typing import TYPE_CHECKING

from llmgw_router.core import errors
from llmgw_router.core.config import WorkerConfig

if TYPE_CHECKING:
    from llmgw_router.relay.hub import Hub

NAME = "max_waiting_bytes"


class Bodies:
    """One per worker. `limit` is its even share, and room for one body at least."""

    __slots__ = ("_hub", "bytes", "limit", "named")

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self.bytes = 0
        self.limit: float = inf
        #: The whole router's, as `x-llmgw-limit` says it.
        self.named = b""

    def reconfigure(self, config: WorkerConfig) -> None:
        most = config.admission.max_waiting_bytes
        self.limit = inf if most is None else max(most // self._hub.workers, config.limits.max_body_bytes)
        self.named = b"" if most is None else b"%b=%d" % (NAME.encode(), most)

    def fits(self, more: int) -> bool:
        """Whether there is room for what is here, `more` of which has just come."""
        self.bytes += more
        if self.bytes > self.limit:
            self.count()
        return self.bytes <= self.limit

    def count(self) -> None:
        """What is there now. Bodies at engines are not: those are bounded by what engines run."""
        total = 0
        for client in self._hub.connections:
            total += client.waiting_bytes()
        self.bytes = total

    def refusal(self) -> tuple[errors.Kind, str]:
        return errors.QUEUE_FULL, (
            f"The bodies of requests that wait in this router fill the memory set aside for them ({NAME})."
        )
