"""What the controller asks one shard to be. Immutable: another spec is another shard."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any

from llmgw_agent.core.paths import folder_name
from llmgw_kit.errors import InvalidRequest
from llmgw_kit.ids import DeviceId, ReplicaId, ShardId

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class WeightsRef:
    """One version of one model's files; `entry_file` is what a single-file loader opens."""

    model: str
    version: str
    entry_file: str | None = None


@dataclass(frozen=True)
class ShardSpec:
    """Mirrors llmgw.v1.ShardSpec. Durations in seconds; `context_length` in tokens per request."""

    shard_id: ShardId
    replica_id: ReplicaId
    group_epoch: int
    spec_hash: str
    model: str
    engine: str
    profile: str = ""
    served_names: tuple[str, ...] = ()
    device_ids: tuple[DeviceId, ...] = ()
    ports: Mapping[str, int] = field(default_factory=lambda: _EMPTY)
    weights: WeightsRef | None = None
    mirror_urls: tuple[str, ...] = ()
    rank: int = 0
    world_size: int = 1
    head_address: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    context_length: int | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    command: tuple[str, ...] = ()
    ready_path: str | None = None
    ready_timeout_s: float = 600.0
    drain_timeout_s: float = 120.0
    stop_grace_s: float = 20.0
    stop_after_silence_s: float | None = None
    credential: str | None = None

    @property
    def http_port(self) -> int | None:
        """Where this shard's engine answers HTTP; None for a member that has no server of its own."""
        return self.ports.get("http")

    @property
    def bound_ports(self) -> dict[str, int]:
        """Ports that this shard itself binds: where the ranks meet is the head's."""
        return {name: port for name, port in self.ports.items() if self.rank == 0 or name != "rendezvous"}

    @property
    def served_name(self) -> str:
        """The name clients use first."""
        return self.served_names[0] if self.served_names else self.model


def check_spec(spec: ShardSpec) -> None:
    """Refuse what no program could be started with, before anything is begun. Raises InvalidRequest."""
    for name in ("shard_id", "engine", "spec_hash"):
        if not getattr(spec, name):
            raise InvalidRequest(f"a shard spec without {name} (shard {spec.shard_id or '?'})")
    folder_name(spec.shard_id, what="shard id")
    texts = [
        *spec.command,
        *spec.args,
        *spec.env,
        *spec.env.values(),
        *spec.served_names,
        spec.credential or "",
    ]
    if any("\0" in text for text in texts):
        raise InvalidRequest(f"shard {spec.shard_id}: a NUL byte in its command, environment or names")
    if any(not name or "=" in name for name in spec.env):
        raise InvalidRequest(f"shard {spec.shard_id}: a variable name that is empty or holds '='")
    if spec.credential is not None and not (spec.credential.isascii() and spec.credential.isprintable()):
        raise InvalidRequest(f"shard {spec.shard_id}: a credential that cannot stand in a header")
    if any(not 1 <= port <= 65535 for port in spec.ports.values()):
        raise InvalidRequest(f"shard {spec.shard_id}: a port outside 1..65535")


def spec_to_plain(spec: ShardSpec) -> dict[str, Any]:
    """As JSON types, for the journal."""
    plain: dict[str, Any] = {}
    for one in fields(spec):
        value = getattr(spec, one.name)
        if isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, WeightsRef):
            value = asdict(value)
        elif isinstance(value, tuple):
            value = list(value)
        plain[one.name] = value
    return plain


def spec_from_plain(plain: Mapping[str, Any]) -> ShardSpec:
    """Back from JSON types. Keys a newer agent wrote are passed over: after a downgrade the engine
    it started must still be adopted. Raises KeyError or TypeError for what is no spec."""
    known = {one.name for one in fields(ShardSpec)}
    values: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in plain.items() if name in known
    }
    if values.get("weights") is not None:
        names = {one.name for one in fields(WeightsRef)}
        values["weights"] = WeightsRef(**{k: v for k, v in values["weights"].items() if k in names})
    return ShardSpec(**values)
