"""What can be served: models, their profiles, their weights. Configuration and the store both hold these.

Parsing lives in `catalog_file.py`; here is what the rest of the core reads. A model's replica count is
no part of its spec hash: changing it must not restart anything.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property, lru_cache

from llmgw_kit.ids import ModelId, NodeId


class Engine(Enum):
    LLAMACPP = "llamacpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    COMMAND = "command"


class Spread(Enum):
    """Where further replicas of a model go."""

    #: Onto the fullest node that takes it: whole nodes stay free.
    PACK = "pack"
    #: Onto nodes that have none of it, where there is one.
    SPREAD = "spread"


class Rollout(Enum):
    """How a changed spec replaces what runs."""

    #: A new one beside the old; where there is no room for both, the old one leaves first.
    SURGE = "surge"
    #: The old one always leaves first.
    STOP_FIRST = "stop_first"


class Source(Enum):
    """Where a model of the catalog comes from. A name in both: configuration wins (M16)."""

    CONFIGURATION = "configuration"
    STORED = "stored"


@dataclass(frozen=True)
class WeightsFile:
    """One file of a version: `url` is http, https or file; `sha256` None when nobody published one."""

    path: str
    url: str
    sha256: str | None
    size_bytes: int | None


@dataclass(frozen=True)
class Weights:
    version: str
    files: tuple[WeightsFile, ...]
    #: The file a single-file loader opens; None where the loader takes the folder.
    entry_file: str | None


@dataclass(frozen=True)
class Profile:
    """One way to run a model: engine, parallelism, devices. tp x pp x dp = nodes x gpus_per_node."""

    name: str
    engine: Engine
    gpu_class: str
    nodes: int
    gpus_per_node: int
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    #: Claimed on each device; None: the whole device, whatever its memory.
    memory_bytes: int | None
    context_length: int | None
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    command: tuple[str, ...]
    #: Names of further ports the engine needs beside "http" ("rendezvous", ...).
    extra_ports: tuple[str, ...]
    ready_path: str | None
    ready_timeout_s: float
    drain_timeout_s: float
    stop_grace_s: float
    stop_after_silence_s: float | None
    #: READY must have lasted this long before the backoff counter resets.
    min_uptime_s: float
    pool: str | None
    #: Only these nodes; empty: any.
    node_ids: tuple[NodeId, ...]
    #: Takes only nodes that are wholly free, and all their devices.
    whole_nodes: bool = False
    #: Requests run and no token came for so long: the group hangs and is restarted; None: never judged.
    stall_timeout_s: float | None = None
    #: Requests that one replica runs at once before others wait; None: unknown, so it never counts as full.
    concurrency: int | None = None

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Model:
    name: ModelId
    aliases: tuple[str, ...]
    weights: Weights | None
    #: In order of preference.
    profiles: tuple[Profile, ...]
    #: Kept up whether asked for or not; 0: cold until asked.
    replicas: int
    activate_on_demand: bool
    #: How long a router may hold a request while the model starts, and how many.
    hold_timeout_s: float
    max_held: int
    #: An activated replica may be stopped after being idle so long; None: never.
    idle_after_s: float | None
    min_residency_s: float
    pinned: bool
    priority: int
    source: Source
    #: Sustained waiting adds replicas up to here; None: no more than `replicas`, or one on demand.
    max_replicas: int | None = None
    spread: Spread = Spread.PACK
    rollout: Rollout = Rollout.SURGE
    #: Replicas that may be away at once while a changed spec is rolled out.
    max_unavailable: int = 1
    #: Of `max_held`, how many may be one tenant's; None: nothing is said of single tenants.
    max_held_per_tenant: int | None = None

    def profile(self, name: str) -> Profile | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Profile]:
        return {profile.name: profile for profile in reversed(self.profiles)}

    @cached_property
    def spec_hashes(self) -> dict[str, str]:
        """`spec_hash` of each profile by name; every pass asks it of every replica, a dozen times."""
        return {profile.name: spec_hash(self, profile) for profile in reversed(self.profiles)}


@lru_cache(maxsize=4096)
def spec_hash(model: Model, profile: Profile) -> str:
    """Names what a replica is started from: a different hash needs a restart, an equal one never.

    Time-outs and placement wishes are left out: they apply to running replicas as they are. Remembered,
    because every pass asks it of every replica and the catalog changes by hand."""
    spec = asdict(profile)
    for name in (
        "drain_timeout_s", "ready_timeout_s", "stop_grace_s", "stop_after_silence_s", "min_uptime_s", "pool",
        "node_ids", "name", "whole_nodes", "stall_timeout_s",
        "concurrency",
    ):  # fmt: skip
        del spec[name]
    spec["engine"] = profile.engine.value
    weights = None
    if model.weights:
        weights = {
            "version": model.weights.version,
            "entry_file": model.weights.entry_file,
            "files": sorted((file.path, file.sha256) for file in model.weights.files),
        }
    text = json.dumps(
        {"model": model.name, "aliases": sorted(model.aliases), "weights": weights, "spec": spec},
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Catalog:
    """All models by name. `shadowed` names stored models that configuration hides (an event tells)."""

    models: dict[ModelId, Model]
    shadowed: tuple[ModelId, ...] = ()

    def sorted_models(self) -> list[Model]:
        return [self.models[name] for name in sorted(self.models)]

    def resolve(self, name: str) -> Model | None:
        """By name or alias; names win."""
        if (model := self.models.get(ModelId(name))) is not None:
            return model
        return next((model for model in self.sorted_models() if name in model.aliases), None)


def merged(configured: list[Model], stored: list[Model]) -> Catalog:
    """The catalog is configuration plus what was stored; a name in both is configuration's."""
    models = {model.name: model for model in stored}
    shadowed = tuple(sorted(model.name for model in configured if model.name in models))
    models.update({model.name: model for model in configured})
    return Catalog(models, shadowed)
