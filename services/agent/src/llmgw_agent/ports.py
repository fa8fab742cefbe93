"""What the loops need from outside, as protocols; adapters and tests' fakes keep the same promises."""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

from llmgw_agent.core.adoption import Found
from llmgw_agent.core.devices import Device
from llmgw_agent.core.load import Answer
from llmgw_agent.core.logs import Chunk
from llmgw_agent.core.progress import Numbers
from llmgw_agent.core.shard import Ended, ProcessIdentity, Shard
from llmgw_agent.core.weights import Held, Listing, WeightsKey
from llmgw_agent.core.words import Heard, Said
from llmgw_agent.engines.base import Engine, Probe, VersionAsk
from llmgw_kit.addresses import HostPort
from llmgw_kit.ids import DeviceId, ShardId


class RunningEngine(Protocol):
    """One engine process and all that belongs to it."""

    identity: ProcessIdentity

    #: Resolves when its first process is gone.
    ended: "asyncio.Future[Ended]"

    def terminate(self) -> None:
        """SIGTERM to its group."""
        ...

    async def kill(self) -> None:
        """End all of it; returns when nothing is left."""
        ...

    def close(self) -> None:
        """Stop watching, leave it running."""
        ...


class EngineLauncher(Protocol):
    """Starts and adopts engines. Neither awaits: see adapters/processes.py."""

    def launch(
        self, argv: Sequence[str], env: Mapping[str, str], *, log_path: Path, cwd: Path, token: str
    ) -> RunningEngine:
        """Raises LlmgwError (code "engine_absent" when there is no such program, else "launch_failed")."""
        ...

    def adopt(self, identity: ProcessIdentity, token: str) -> RunningEngine:
        """Watch one that an earlier agent started."""
        ...

    def check_free(self, host: str, ports: Mapping[str, int]) -> None:
        """Raises Conflict (code "port_taken") naming the first leased port that somebody has."""
        ...

    def oom_kills(self) -> int | None:
        """Processes the kernel has ended for want of memory since the boot; None: it does not count them."""
        ...

    def last_words(self, log_path: Path) -> str:
        """The end of an engine's output; empty when there is none."""
        ...


class ProcessTable(Protocol):
    """What runs on this machine."""

    def boot_id(self) -> str:
        """Of this boot."""
        ...

    def process(self, pid: int) -> Found | None:
        """None when there is none, or it has ended and only waits to be reaped."""
        ...

    def token_holders(self) -> Mapping[str, tuple[Found, ...]]:
        """Live processes with a shard token, by token, in order of pid."""
        ...

    def session_members(self, leader: int) -> tuple[Found, ...]:
        """Live processes of the session that `leader` led. Only meaningful while no process has that
        pid: the kernel does not give a pid away that a session still bears."""
        ...

    def strays(self, owner_id: str, known_tokens: Set[str]) -> frozenset[str]:
        """Tokens of engines of this data folder that the journal does not know."""
        ...

    async def sweep(self, token: str | None, leader: int | None = None) -> None:
        """End every process that carries the token, or is of the session; returns when none is left."""
        ...


class EngineHttp(Protocol):
    """Asks one engine. `credential` is sent as bearer where there is one."""

    async def ready(self, at: HostPort, path: str, credential: str | None) -> str | None:
        """None when it is, else what it said."""
        ...

    async def probe(
        self, at: HostPort, probes: Sequence[Probe], credential: str | None, *, patience_s: float
    ) -> str | None:
        """None when one of the probes was answered, else what was said to the last."""
        ...

    async def numbers(self, at: HostPort, engine: Engine, credential: str | None) -> Numbers:
        """Raises Unavailable or InvalidRequest saying why they are unknown."""
        ...

    async def version(self, at: HostPort, asks: Sequence[VersionAsk], credential: str | None) -> str | None:
        """As it names itself; None when it does not."""
        ...


class JournalLike(Protocol):
    """Memory over restarts. Both raise OSError."""

    def write(self, shard: Shard) -> None: ...
    def forget(self, shard_id: ShardId) -> None: ...


class WeightsLike(Protocol):
    """Weights of this node."""

    async def fetch(
        self, key: WeightsKey, mirrors: Sequence[str], progress: Callable[[float | None], None]
    ) -> Listing:
        """Raises LlmgwError."""
        ...

    async def verify(
        self, key: WeightsKey, total_bytes: int, progress: Callable[[float | None], None]
    ) -> str | None:
        """None when it is as published, else what is wrong."""
        ...

    def model_path(self, key: WeightsKey, entry_file: str | None) -> Path:
        """Raises NotFound."""
        ...

    async def remove(self, key: WeightsKey) -> int:
        """Bytes freed. Raises NotFound."""
        ...

    def fetching(self, key: WeightsKey) -> bool: ...

    def flights(self) -> Mapping[WeightsKey, float | None]:
        """What is on its way, with how far it is."""
        ...

    async def held(self) -> tuple[Held, ...]: ...


class DeviceProvider(Protocol):
    """The GPUs of this node."""

    async def read(self) -> tuple[Device, ...]:
        """All devices as they are now, in order of index. Raises Unavailable when nobody can tell."""
        ...

    def visible(self, device_ids: Sequence[DeviceId]) -> Mapping[str, str]:
        """Environment that shows an engine these devices and no other. Raises NotFound."""
        ...

    def close(self) -> None: ...


class LogLike(Protocol):
    """One engine's log; both are blocking and raise FileNotFoundError."""

    def tail(self, lines: int) -> Sequence[Chunk]:
        """The last lines; reading goes on after them."""
        ...

    def more(self) -> Chunk | None:
        """What came since, a piece at most; None: nothing."""
        ...


class LoadLike(Protocol):
    """Asks an engine as a client does."""

    async def path(self, at: HostPort, model: str, engine: str, credential: str | None) -> str:
        """The kind of request it answers. Raises InvalidRequest when it generates nothing, Unavailable."""
        ...

    async def ask(
        self,
        at: HostPort,
        path: str,
        model: str,
        engine: str,
        credential: str | None,
        prompt: str,
        tokens: int,
    ) -> Answer:
        """One request to its end, timed. Raises Unavailable and InvalidRequest."""
        ...


class ControllerStream(Protocol):
    """One open conversation with a controller."""

    async def say(self, epoch: int | None, said: Said) -> None:
        """Raises LlmgwError when the stream is gone."""
        ...

    async def hear(self) -> Heard | None:
        """None when the controller ended it. Raises LlmgwError (NotLeader names the leader)."""
        ...

    async def close(self) -> None:
        """Safe to call twice."""
        ...


class Dial(Protocol):
    """Opens a stream. `address` is HOST:PORT; raises LlmgwError."""

    async def __call__(self, address: str) -> ControllerStream: ...
