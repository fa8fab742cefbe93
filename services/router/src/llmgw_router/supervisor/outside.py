"""What a pool of workers is made of, and what it tells whoever made it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from llmgw_router.core.config import WorkerConfig
from llmgw_router.relay import ipc


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """What a pool is made of. `host` "*" listens on every family the kernel has."""

    workers: int
    host: str
    port: int
    #: Unix socket where the supervisor serves what the workers do not.
    cold_socket: str
    config: WorkerConfig = field(default_factory=WorkerConfig)
    #: Gives the folder where workers spool usage, once the real port is known. None: they do not.
    usage_folder: Callable[[int], Path] | None = None
    #: Most endpoints of one router; each costs 40 bytes a worker.
    slot_capacity: int = 16_384
    backlog: int = 4096
    start_timeout_s: float = 20.0


class WorkerEvents(Protocol):
    """What the pool tells, summed up over its workers; called on the loop, must not block."""

    def want(self, model: str, waiting: int) -> None:
        """`waiting` requests are held for a model that has no routable endpoint."""

    def unwant(self, model: str) -> None:
        """Nobody waits for it any more."""

    def applied(self, seq: int) -> None:
        """Every worker picks from push `seq`, or a later one."""

    def drained(self, endpoint_ids: frozenset[str]) -> None:
        """Draining at every worker, and nothing of this router runs there. Told once per drain mark."""

    def access(self, records: Sequence[ipc.AccessRecord]) -> None:
        """Finished exchanges, in batches; only where the telemetry asks for them."""
